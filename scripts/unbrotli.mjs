// node unbrotli.mjs PACKED FILE: Python's standard library cannot unpack Brotli, Node's can.
import { createReadStream, createWriteStream } from "node:fs";
import { pipeline } from "node:stream/promises";
import { createBrotliDecompress } from "node:zlib";

const [packed, file] = process.argv.slice(2);
await pipeline(createReadStream(packed), createBrotliDecompress(), createWriteStream(file));
