"""The programs that ranks run are no tests."""

collect_ignore = ["_cells.py", "_compiled_cells.py", "_drill.py", "_ending.py", "_pipelining.py", "_speaking.py"]
