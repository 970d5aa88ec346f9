"""``python -m ntl_kernels.tokens FOLDER_OR_FILE``: which tokens of a tokenizer count as numbers.

It prints :meth:`NumberTokens.describe` for the default options and, if others count more, for those.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from ..command_line import Parser
from ..extras import needs
from .number_tokens import NumberTokens
from .texts import Options, panics_as_errors, possible_labels, verdict, vocab_of


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="python -m ntl_kernels.tokens", description="Which tokens of a tokenizer count as numbers.")
    parser.add_argument("path", type=Path, metavar="FOLDER_OR_FILE", help="a tokenizer.json, or a folder with one")
    parser.add_argument("--most", type=int, default=3, help="values to list of each group (default: 3; all: -1)")
    chosen = parser.parse_args(arguments)
    file = chosen.path / "tokenizer.json" if chosen.path.is_dir() else chosen.path
    with needs("ntl_kernels.tokens", "tokenizers", "tokenizers"):
        from tokenizers import Tokenizer
    try:
        with panics_as_errors("the tokenizers package panicked"):
            tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises nothing more specific
        parser.error(f"{file}: {error}")
    vocab = vocab_of(tokenizer)
    _, _, best = verdict(vocab, possible_labels(tokenizer, vocab), Options())
    warnings.simplefilter("ignore")  # the descriptions repeat them
    for options in dict.fromkeys([Options(), best]):
        try:
            described = NumberTokens.from_tokenizer(tokenizer, None, *options).describe(chosen.most)
        except ValueError as error:
            described = str(error)
        print(f"{options.call}\n{described}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
