from dragoman.core.tables import table_lines


def test_a_cell_with_a_bar_or_a_line_break_stays_one_cell():
    assert table_lines(["", "why"], [["a|b", "first\nsecond"]]) == [
        "| | why |",
        "|---|---|",
        "| a\\|b | first second |",
    ]
