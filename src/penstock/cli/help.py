"""The help texts, drawn from the tables."""

from __future__ import annotations

from penstock.cli.commands import COMMANDS
from penstock.cli.terminal import Paint, columns, fit, wrap
from penstock.settings.flags import GROUPS, UNBUILT, Flag

__all__ = ["overview", "profile_help", "unbuilt_help"]

EXAMPLES = (
    (
        "Try it without a server",
        "profile --model test --url mock:// --streaming --tokenizer builtin --isl 100 --osl 20 --request-count 20",
    ),
    (
        "Sixteen requests in flight at once, for ten seconds",
        "profile --model test --url mock:// --streaming --tokenizer builtin --concurrency 16 --benchmark-duration 10",
    ),
    (
        "Five requests a second, evenly spaced",
        "profile --model test --url mock:// --tokenizer builtin --request-rate 5 --arrival-pattern constant",
    ),
)
"""Each runs as it stands: `mock://` is a server inside Penstock."""

UNBUILT_FLAG = "--help-unbuilt"

STATUSES = (
    ("0", "the run is complete, and no more requests failed than --max-error-rate allows"),
    ("1", "the run could not be carried out, too many requests failed, or --require-valid was not met"),
    ("2", "something on the command line or in the input file must change"),
    ("130", "interrupted"),
)


def overview(program: str) -> str:
    paint = Paint()
    width = max(len(command.name) for command in COMMANDS)
    lines = [
        f"{paint.bold('Usage:')} {program} COMMAND [options]",
        "",
        "Put an LLM server under a chosen load, and say truthfully how fast it was.",
        "",
        paint.bold("Commands"),
        *(f"  {command.name:{width}}  {command.line}" for command in COMMANDS),
        "",
        paint.bold("Options"),
        "  --help, -h  this text; after a command, the command's own",
        "  --version   the version",
        "",
        *_examples(program, paint),
    ]
    return fit("\n".join(lines)) + "\n"


def profile_help(program: str) -> str:
    paint = Paint()
    width = columns()
    lines = [
        f"{paint.bold('Usage:')} {program} profile --model NAME [options]",
        "",
        *wrap(
            "Send requests to an LLM server under a chosen load, and report latency, throughput and errors.", width, 0
        ),
        *wrap("In names and choices - and _ are alike; --flag value and --flag=value are alike.", width, 0),
    ]
    for group in GROUPS:
        lines += ["", paint.bold(group.title)]
        for flag in group.flags:
            lines += _entry(flag, width, paint)
    lines += ["", paint.bold("Help")]
    lines += ["  --help, -h", "      This text."]
    lines += [
        f"  {UNBUILT_FLAG}",
        *wrap("AIPerf's options that this version does not have yet, and refuses.", width, 6),
    ]
    lines += ["", paint.bold("Exit status")]
    lines += [fit(f"  {status:>3}  {meaning}") for status, meaning in STATUSES]
    lines += ["", *_examples(program, paint)]
    return "\n".join(lines) + "\n"


def unbuilt_help(program: str) -> str:
    """A list of its own: two hundred names would stand between a reader and what there is."""
    about = (
        f"AIPerf's options that this version of Penstock does not have yet. `{program} profile` refuses each by name."
    )
    return "\n".join([fit(about), "", *wrap(" ".join(row.name for row in UNBUILT), columns(), 2)]) + "\n"


def _entry(flag: Flag, width: int, paint: Paint) -> list[str]:
    value = "" if flag.kind == "bool" else " " + (flag.metavar or "|".join(flag.choices))
    names = ", ".join(flag.spellings)
    head = [f"  {paint.bold(names)}{value}"]
    if len(names) + len(value) + 2 > width:
        head = [f"  {paint.bold(names)}", f"     {value}"]
    return [*head, *wrap(f"{flag.help} {_facts(flag)}".rstrip(), width, 6)]


def _facts(flag: Flag) -> str:
    """Bounds and default, in brackets."""
    facts = ["Penstock only"] if flag.own else []
    if flag.ge is not None and flag.le is not None:
        facts.append(f"{flag.ge:g} to {flag.le:g}")
    elif flag.ge is not None:
        facts.append(f"at least {flag.ge:g}" + (", or inf" if flag.infinite else ""))
    elif flag.gt is not None:
        facts.append(f"more than {flag.gt:g}")
    if flag.default:
        facts.append(f"default: {flag.default}")
    return f"[{'; '.join(facts)}]" if facts else ""


def _examples(program: str, paint: Paint) -> list[str]:
    lines = [paint.bold("Examples")]
    for title, words in EXAMPLES:
        lines += [f"  {title}:", f"    {program} {words}"]
    return lines
