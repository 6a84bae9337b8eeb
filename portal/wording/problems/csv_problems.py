"""Define messages for invalid CSV files that are imported."""

from __future__ import annotations

FILE_UNREADABLE = "csv is not a text of at most {most} characters without NUL; allowed: a CSV file in UTF-8."
FILE_ENCODING = "file is no text; allowed: a CSV file in UTF-8, or in Latin-1 as spreadsheets write it."
FILE_IS_NO_CSV = "csv can't be read: {problem}; allowed: a CSV file with commas, semicolons or tabs."
ROW_COUNT = "csv has {count} lines; allowed: 1 to {most}."
CELL_COUNT = "the line has {count} cells; allowed: {columns}, as the header has."
LINE_IS_WRONG = "line {line}: {problem} Wrong lines: {count}. Nothing is imported."
