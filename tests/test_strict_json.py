"""The JSON that is taken and the JSON that is not, against a suite's cases and another parser."""

from __future__ import annotations

import json
import math
from typing import Any

import pydantic_core
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adapter.errors import InvalidRequest
from adapter.strict_json import parse

# Named and chosen after Nicolas Seriot's JSONTestSuite (github.com/nst/JSONTestSuite): its n_
# cases must be refused and its y_ cases taken. Where it leaves the choice to the parser (i_), and
# for duplicate keys, which it takes, this parser refuses.
REFUSED = {
    "n_array_1_true_without_comma": (b"[1 true]", "invalid_json"),
    "n_array_a_invalid_utf8": (b"[a\xe5]", "invalid_encoding"),
    "n_array_colon_instead_of_comma": (b'["": 1]', "invalid_json"),
    "n_array_comma_after_close": (b'[""],', "invalid_json"),
    "n_array_comma_and_number": (b"[,1]", "invalid_json"),
    "n_array_double_comma": (b"[1,,2]", "invalid_json"),
    "n_array_extra_close": (b'["x"]]', "invalid_json"),
    "n_array_incomplete": (b'["x"', "invalid_json"),
    "n_array_spaces_vertical_tab_formfeed": (b'["\x0ba"\\f]', "invalid_json"),
    "n_array_star_inside": (b"[*]", "invalid_json"),
    "n_incomplete_false": (b"[fals]", "invalid_json"),
    "n_multidigit_number_then_00": (b"123\x00", "invalid_json"),
    "n_number_++": (b"[++1234]", "invalid_json"),
    "n_number_-01": (b"[-01]", "invalid_json"),
    "n_number_-1.0.": (b"[-1.0.]", "invalid_json"),
    "n_number_-NaN": (b"[-NaN]", "invalid_json"),
    "n_number_.2e-3": (b"[.2e-3]", "invalid_json"),
    "n_number_0.e1": (b"[0.e1]", "invalid_json"),
    "n_number_0_capital_E+": (b"[0E+]", "invalid_json"),
    "n_number_1_000": (b"[1 000.0]", "invalid_json"),
    "n_number_1eE2": (b"[1eE2]", "invalid_json"),
    "n_number_Inf": (b"[Inf]", "invalid_json"),
    "n_number_NaN": (b"[NaN]", "invalid_number"),
    "n_number_U+FF11_fullwidth_digit_one": ("[\uff11]".encode(), "invalid_json"),
    "n_number_infinity": (b"[Infinity]", "invalid_number"),
    "n_number_minus_infinity": (b"[-Infinity]", "invalid_number"),
    "n_number_minus_space_1": (b"[- 1]", "invalid_json"),
    "n_number_with_leading_zero": (b"[012]", "invalid_json"),
    "n_object_bad_value": (b'["x", truth]', "invalid_json"),
    "n_object_comma_instead_of_colon": (b'{"x", null}', "invalid_json"),
    "n_object_double_colon": (b'{"x"::"b"}', "invalid_json"),
    "n_object_missing_value": (b'{"a":', "invalid_json"),
    "n_object_no-colon": (b'{"a"', "invalid_json"),
    "n_object_non_string_key": (b"{1:1}", "invalid_json"),
    "n_object_several_trailing_commas": (b'{"id":0,,,,,}', "invalid_json"),
    "n_object_single_quote": (b"{'a':0}", "invalid_json"),
    "n_object_trailing_comment": (b'{"a":"b"}/**/', "invalid_json"),
    "n_object_unquoted_key": (b'{a: "b"}', "invalid_json"),
    "n_object_with_trailing_garbage": (b'{"a":"b"}#', "invalid_json"),
    "n_single_space": (b" ", "invalid_json"),
    "n_string_1_surrogate_then_escape_u": (rb'["\uD800\u"]', "invalid_json"),
    "n_string_backslash_00": (b'["\\\x00"]', "invalid_json"),
    "n_string_escape_x": (rb'["\x00"]', "invalid_json"),
    "n_string_escaped_emoji": ('["\\\U0001f300"]'.encode(), "invalid_json"),
    "n_string_incomplete_escape": (b'["\\"]', "invalid_json"),
    "n_string_invalid_unicode_escape": (rb'["\uqqqq"]', "invalid_json"),
    "n_string_leading_uescaped_thinspace": (rb'[\u0020"asd"]', "invalid_json"),
    "n_string_single_doublequote": (b'"', "invalid_json"),
    "n_string_unescaped_ctrl_char": (b'["a\x00a"]', "invalid_json"),
    "n_string_unescaped_newline": (b'["new\nline"]', "invalid_json"),
    "n_string_unescaped_tab": (b'["\t"]', "invalid_json"),
    "n_structure_100000_opening_arrays": (b"[" * 100_000, "too_deep"),
    "n_structure_U+2060_word_joined": ("[\u2060]".encode(), "invalid_json"),
    "n_structure_UTF8_BOM_no_data": (b"\xef\xbb\xbf", "invalid_json"),
    "n_structure_angle_bracket_null": (b"[<null>]", "invalid_json"),
    "n_structure_capitalized_True": (b"[True]", "invalid_json"),
    "n_structure_double_array": (b"[][]", "invalid_json"),
    "n_structure_no_data": (b"", "invalid_json"),
    "n_structure_null-byte-outside-string": (b"[\x00]", "invalid_json"),
    "n_structure_open_array_object": (b'[{"":' * 50_000, "too_deep"),
    "n_structure_whitespace_formfeed": (b"[\x0c]", "invalid_json"),
    "i_number_huge_exp": (b"[0.4e006699999999999999999999999999999999999]", "invalid_number"),
    "i_number_neg_int_huge_exp": (b"[-1e+9999]", "invalid_number"),
    "i_number_real_pos_overflow": (b"[123123e100000]", "invalid_number"),
    "i_object_key_lone_2nd_surrogate": (rb'{"\uDFAA":0}', "invalid_string"),
    "i_string_1st_surrogate_but_2nd_missing": (rb'["\uDADA"]', "invalid_string"),
    "i_string_1st_valid_surrogate_2nd_invalid": (rb'["\uD888\u1234"]', "invalid_string"),
    "i_string_UTF-16LE_with_BOM": (b"\xff\xfe[\x00]\x00", "invalid_encoding"),
    "i_string_UTF-8_invalid_sequence": (b'["\xe6\x97\xa5\xd1\x88\xfa"]', "invalid_encoding"),
    "i_string_UTF8_surrogate_U+D800": (b'["\xed\xa0\x80"]', "invalid_encoding"),
    "i_string_inverted_surrogates_U+1D11E": (rb'["\uDd1e\uD834"]', "invalid_string"),
    "i_string_iso_latin_1": (b'["\xe9"]', "invalid_encoding"),
    "i_string_not_in_unicode_range": (b'["\xf4\xbf\xbf\xbf"]', "invalid_encoding"),
    "i_string_overlong_sequence_2_bytes": (b'["\xc0\xaf"]', "invalid_encoding"),
    "i_string_truncated-utf-8": (b'["\xe0\xff"]', "invalid_encoding"),
    "i_structure_500_nested_arrays": (b"[" * 500 + b"]" * 500, "too_deep"),
    "i_structure_UTF-8_BOM_empty_object": (b"\xef\xbb\xbf{}", "invalid_json"),
    "y_object_duplicated_key": (b'{"a":"b","a":"c"}', "duplicate_key"),
    "y_object_duplicated_key_and_value": (b'{"a":"b","a":"b"}', "duplicate_key"),
    # Not of the suite.
    "duplicate_key_inside": (b'[[{"a":{"b":1,"c":2,"b":3}}]]', "duplicate_key"),
    "duplicate_key_by_escape": (rb'{"\u0061":1,"a":2}', "duplicate_key"),
    "integer_of_4301_digits": (b"1" * 4301, "invalid_number"),
    "65_levels_of_both": (b'[{"":' * 32 + b"[1]" + b"}]" * 32, "too_deep"),
    "65_levels_behind_a_string_of_brackets": (b'["]]]]\\"]",' + b"[" * 64 + b"]" * 65, "too_deep"),
}

TAKEN: dict[str, tuple[bytes, Any]] = {
    "y_array_arraysWithSpaces": (b"[[]   ]", [[]]),
    "y_array_heterogeneous": (b'[null, 1, "1", {}]', [None, 1, "1", {}]),
    "y_array_with_several_null": (b"[1,null,null,null,2]", [1, None, None, None, 2]),
    "y_number_0e+1": (b"[0e+1]", [0.0]),
    "y_number_double_close_to_zero": (b"[-0.000000000000000000000000001]", [-1e-27]),
    "y_number_minus_zero": (b"[-0]", [0]),
    "y_number_negative_int": (b"[-123]", [-123]),
    "y_number_real_exponent": (b"[123e45]", [123e45]),
    "y_number_simple_real": (b"[123.456789]", [123.456789]),
    "y_object_empty_key": (b'{"":0}', {"": 0}),
    "y_object_escaped_null_in_key": (rb'{"foo\u0000bar": 42}', {"foo\x00bar": 42}),
    "y_object_extreme_numbers": (b'{"min": -1.0e+28, "max": 1.0e+28}', {"min": -1e28, "max": 1e28}),
    "y_string_accepted_surrogate_pair": (rb'["\uD801\udc37"]', ["\U00010437"]),
    "y_string_allowed_escapes": (rb'["\"\\\/\b\f\n\r\t"]', ['"\\/\b\f\n\r\t']),
    "y_string_backslash_and_u_escaped_zero": (rb'["\\u0000"]', ["\\u0000"]),
    "y_string_comments": (b'["a/*b*/c/*d//e"]', ["a/*b*/c/*d//e"]),
    "y_string_in_array": (b'["asd"]', ["asd"]),
    "y_string_nonCharacterInUTF-8_U+FFFF": (b'["\xef\xbf\xbf"]', ["\uffff"]),
    "y_string_u+2028_line_sep": (b'["\xe2\x80\xa8"]', ["\u2028"]),
    "y_string_unicode_U+10FFFE_nonchar": (rb'["\uDBFF\uDFFE"]', ["\U0010fffe"]),
    "y_string_utf8": (b'["\xe2\x82\xac\xf0\x9d\x84\x9e"]', ["\u20ac\U0001d11e"]),
    "y_string_with_del_character": (b'["a\x7fa"]', ["a\x7fa"]),
    "y_structure_lonely_false": (b"false", False),
    "y_structure_lonely_int": (b"42", 42),
    "y_structure_lonely_null": (b"null", None),
    "y_structure_string_empty": (b'""', ""),
    "y_structure_trailing_newline": (b'["a"]\n', ["a"]),
    "y_structure_whitespace_array": (b" [] ", []),
    "i_number_double_huge_neg_exp": (b"[123.456e-789]", [0.0]),
    "i_number_too_big_pos_int": (b"[100000000000000000000]", [100000000000000000000]),
    # Not of the suite.
    "integer_of_4300_digits": (b"1" * 4300, int("1" * 4300)),
    "largest_float": (b"1.7976931348623157e308", 1.7976931348623157e308),
    "same_key_in_two_objects": (b'[{"a":1},{"a":2}]', [{"a": 1}, {"a": 2}]),
    "keys_in_the_order_sent": (b'{"b":1,"a":2}', {"b": 1, "a": 2}),
    "brackets_in_strings": (b'["[{[{[{\\"[[[["]', ['[{[{[{"[[[[']),
    "70_brackets_in_a_string": (b'["' + b"[" * 70 + b'"]', ["[" * 70]),
    "65_arrays_side_by_side": (b"[" + b"[]," * 64 + b"[]]", [[]] * 65),
}


@pytest.mark.parametrize(("body", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(body: bytes, code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(body)

    assert (caught.value.code, caught.value.field) == (code, None)
    # The message can go into an answer, and does not repeat a body.
    assert 0 < len(caught.value.message.encode()) < 300


@pytest.mark.parametrize(("body", "value"), TAKEN.values(), ids=TAKEN.keys())
def test_taken(body: bytes, value: Any) -> None:
    parsed = parse(body)

    assert parsed == value
    assert type(parsed) is type(value)
    if isinstance(value, dict) and isinstance(parsed, dict):
        assert list(parsed) == list(value)


@pytest.mark.parametrize(
    ("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")], ids=["arrays", "objects"]
)
def test_64_levels_are_the_limit(opening: bytes, closing: bytes) -> None:
    assert parse(opening * 64 + b"1" + closing * 64)
    with pytest.raises(InvalidRequest, match="deeper than 64 levels"):
        parse(opening * 65 + b"1" + closing * 65)


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)
# Text that is nearly JSON, which arbitrary text almost never is.
PIECES = ['"', "\\", "u", "d800", "dc00", "0061", "[", "]", "{", "}", ",", ":", "a", "1", "0"]
PIECES += ["-", ".", "e", "E+9", "999", " ", "\n", "\x00", "é", "true", "null", "NaN", "Infinity"]
NEAR_JSON = st.lists(
    st.sampled_from(PIECES) | VALUES.map(json.dumps) | st.characters(), max_size=12
).map("".join)


@given(value=VALUES, ascii_only=st.booleans(), indent=st.sampled_from([None, 1]))
def test_what_was_written_is_read_back(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)

    assert repr(parse(text.encode())) == repr(value)


@given(text=NEAR_JSON)
@example('{"a": 1, "a": 2}')
@example('["\\ud800"]')
@example("1e999")
@example("9" * 5000)
def test_another_parser_reads_the_same(text: str) -> None:
    """`jiter`, written in Rust, stands in for whatever a caller or a proxy parses with."""
    body = text.encode("utf-8", "surrogatepass")
    try:
        theirs = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError:
        theirs = REFUSAL
    code = None
    ours = None
    try:
        ours = parse(body)
    except InvalidRequest as refusal:
        code = refusal.code

    match code:
        case None:
            assert same(ours, theirs)
        case "duplicate_key":
            pass  # jiter keeps the last one
        case "invalid_number":
            assert theirs is REFUSAL or "inf" in repr(theirs)
        case _:
            assert theirs is REFUSAL


REFUSAL = object()


def same(ours: Any, theirs: Any) -> bool:
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(ours, dict):
        pairs = zip(ours.values(), theirs.values(), strict=True)
        return list(ours) == list(theirs) and all(same(*pair) for pair in pairs)
    if isinstance(ours, float):
        return ours == theirs and math.copysign(1, ours) == math.copysign(1, theirs)
    return bool(ours == theirs)


@given(body=st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        value = parse(body)
    except InvalidRequest:
        return

    assert json.loads(body) == value
