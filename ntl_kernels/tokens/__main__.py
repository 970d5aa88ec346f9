"""``python -m ntl_kernels.tokens FOLDER_OR_FILE``: which tokens count as numbers, by default and with other options."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from ..command_line import Parser
from ..extras import needs
from .number_tokens import NumberTokens
from .texts import Options, panics_as_errors, verdict, vocab_of


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="python -m ntl_kernels.tokens", description="Which tokens of a tokenizer count as numbers.")
    parser.add_argument("path", type=Path, metavar="FOLDER_OR_FILE", help="a tokenizer.json, or a folder with one")
    path = parser.parse_args(arguments).path
    warnings.simplefilter("ignore")  # the descriptions repeat them
    with needs("ntl_kernels.tokens", "tokenizers", "tokenizers"):
        from tokenizers import Tokenizer
    try:
        with panics_as_errors("the tokenizers package cannot read it"):
            tokenizer = Tokenizer.from_file(str(path / "tokenizer.json" if path.is_dir() else path))
        best = verdict(tokenizer, vocab_of(tokenizer), Options()).best
        for options in dict.fromkeys([Options(), best]):
            print(f"{options.call}\n{NumberTokens.from_tokenizer(tokenizer, None, *options).describe(3)}\n")
    except (OSError, ValueError) as error:
        parser.error(f"{path}: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
