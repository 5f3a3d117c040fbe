"""How good decisions are: labelled data, runs over it, and what follows from them."""
