# pyright: basic
"""The paper's table and its comparison of strategies, against its own numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import tintformer as tint
from tintformer.storage.configs import KNOWN_MODELS, read_config
from tintlab.checks.accounting.paper_formula import Formula, strategies
from tintlab.cli import params

BILLION = 1e9


def formula(name: str, **knobs: int) -> Formula:
    return Formula.of(read_config(name), **knobs)


def test_the_symbols_of_opt_125m() -> None:
    small = formula("facebook/opt-125m")
    assert (small.dim_sim, small.num_heads, small.shards) == (3072, 12, 3)
    assert (small.num_prefix, small.num_positions) == (192, 2240)
    assert (small.linear, small.split) == (5_013_504, 823_296)


@pytest.mark.parametrize(
    ("name", "heads", "total"),
    [
        ("facebook/opt-125m", 12, 1_275_936_768),
        ("facebook/opt-350m", 16, 3_174_039_552),
        ("facebook/opt-1.3b", 16, 10_824_450_048),
        ("facebook/opt-2.7b", 16, 21_771_059_200),
    ],
)
def test_totals(name: str, heads: int, total: int) -> None:
    size = formula(name)
    assert size.num_heads == heads
    assert size.total == total
    assert total == (21 * size.linear + 6 * size.dim_sim * size.num_heads + size.split) * size.num_layers


@pytest.mark.parametrize("size", ["125m", "350m", "1.3b", "2.7b"])
def test_the_theorem_is_the_table_without_its_surplus_square(size: str) -> None:
    found = formula(f"facebook/opt-{size}")
    assert found.theorem() == found.total
    assert found.theorem(as_printed=True) > 50_000 * found.total
    # The constants are no matter of choice: each term has its own.
    assert all(found.theorem(other) != found.total for other in [(84, 91, 63), (85, 90, 63), (85, 91, 64)])


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("facebook/opt-125m", (0.4, 0.4, 0.4, 1.2)),
        ("facebook/opt-1.3b", (3.7, 3.6, 3.5, 10.8)),
        ("facebook/opt-2.7b", (7.4, 7.2, 7.2, 21.8)),
    ],
)
def test_the_printed_billions(name: str, printed: tuple[float, ...]) -> None:
    row = formula(name).rows()[-1]
    for value, billions in zip((row.forward, row.backward, row.descent, row.total), printed, strict=True):
        # The table rounds some entries and cuts others off (1.276 is printed as 1.2).
        assert abs(value / BILLION - billions) < 0.1


def test_the_printed_size_of_opt_350m_is_not_what_its_formula_gives() -> None:
    assert formula("facebook/opt-350m").total / BILLION < 3.2  # printed: 3.4


def test_rows_follow_from_their_parts() -> None:
    rows = {row.module: row for row in formula("facebook/opt-1.3b").rows()}
    blocks = {
        "self-attention block": ("layer norms", "self-attention", "linear"),
        "feed-forward block": ("layer norms", "linear", "linear", "activation"),
        "transformer block": ("self-attention block", "feed-forward block"),
    }
    for block, parts in blocks.items():
        for direction in ("forward", "backward", "descent"):
            assert getattr(rows[block], direction) == sum(getattr(rows[part], direction) for part in parts)
    for row in rows.values():
        missing = rows["activation"].forward if row.module == "feed-forward block" else 0
        assert row.total == row.forward + row.backward + row.descent - missing


@pytest.mark.parametrize(
    ("name", "heads"),
    [("SmolLM2-135M", 8), ("SmolLM2-360M", 12), ("gpt2-xl", 16), ("pythia-14m", 4), ("gpt2", 12)],
)
def test_heads_are_a_multiple_of_the_stack(name: str, heads: int) -> None:
    assert formula(name).num_heads == heads


def test_fewer_heads_than_rows_and_pieces_of_equal_width() -> None:
    assert Formula(dim_aux=16, num_layers=1, num_heads_aux=2).num_heads == 4
    assert Formula(dim_aux=20, num_layers=1, num_heads_aux=12).num_heads == 8  # 20 is not divisible by 3


@pytest.mark.parametrize("name", KNOWN_MODELS)
def test_every_known_model_has_a_size(name: str) -> None:
    size = formula(name)
    assert size.dim_sim % size.num_heads == 0 and size.num_heads % size.stack == 0
    assert size.num_heads <= min(size.stack**2, max(size.stack, size.num_heads_aux))
    assert size.total > 0


@pytest.mark.parametrize("stack", [0, -1, 5])
def test_a_stack_that_does_not_divide_the_width(stack: int) -> None:
    with pytest.raises(tint.TintError, match=f"stack={stack} rows .* width 768; choose a divisor"):
        formula("gpt2", stack=stack)


def test_strategies_at_the_papers_width() -> None:
    found = {row.name: row for row in strategies(768, paper_linear=5_013_504, lean_linear=140_000)}
    assert found["feed-forward product"].parameters == 4_718_592  # "a minimum of 4.7 million"
    assert found["attention copy"].parameters == 1_769_472  # "another 1.7 million"
    assert found["memory tape"].parameters == 6_488_064  # "at least 6.4 million"
    assert found["prefix attention"].parameters == 1_769_472  # "only ... 1.7 million"
    assert found["linear module, lean layout"].parameters == 140_000
    assert found["linear module, paper layout"].inner_products == 768
    assert len(strategies(768)) == 4


@pytest.fixture
def short(tmp_path: Path) -> Path:
    """The shape of opt-125m with two blocks: what is counted by blocks takes a sixth of the time."""
    config = read_config("facebook/opt-125m")
    config.num_hidden_layers = 2
    config.save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    made = typer.Typer()
    made.command()(params.params)
    return made


def test_the_command_prints_json(app: typer.Typer, short: Path) -> None:
    done = CliRunner().invoke(app, [str(short), "--json"])
    assert done.exit_code == 0
    counts = json.loads(done.stdout)
    assert counts["parameters"] == 54_360_576
    assert counts["formula"][-1] == {
        "module": "transformer",
        "forward": 431_013_888 // 6,
        "backward": 423_788_544 // 6,
        "descent": 421_134_336 // 6,
        "total": 1_275_936_768 // 6,
    }
    assert counts["theorem"]["parameters"] == counts["formula"][-1]["total"]
    assert counts["network"]["layers"] == counts["network"]["depth"][-1]["total"] > 100
    assert counts["network"]["capacity"]["multiples_of_dim_sim"]["forward_values"] == 54 / 6
    assert [row["parameters"] for row in counts["network"]["stored"]] == ["dense", "non-zero", "structured"]
    assert counts["symbols"]["linear"] == 5_013_504
    assert counts["strategies"][2]["parameters"] == 6_488_064


def test_the_command_prints_tables(app: typer.Typer, short: Path) -> None:
    done = CliRunner().invoke(app, [str(short), "--stack", "2", "--tokens", "32"], env={"COLUMNS": "140"})
    assert done.exit_code == 0
    network = ("compiled network, 32 tokens, 1 step: layers", "LinearMap, clearing slots", "structured, thousands")
    simulator = ("54,360,576 parameters", "D_sim = 1536", "feed-forward block", "memory tape", "6,488,064")
    for text in (*simulator, "without its surplus D^2, c1 = 85, c2 = 91, c3 = 63", *network):
        assert text in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpt5"], "nothing is fetched"),
        (["gpt2", "--layout", "wide"], "layout='wide' is unknown; choose one of paper, lean"),
        (["gpt2", "--stack", "5"], "stack=5"),
        (["gpt2", "--tokens", "5000"], "max_tokens=5000 but gpt2 was built for 1024 positions; use fewer"),
        (["gpt2", "--tokens", "1"], "max_tokens=1 must be a whole number of at least 2"),
        (["gpt2", "--steps", "-1"], "steps"),
        (["gpt2", "--layout", "paper", "--tokens", "9"], "leave out --layout paper"),
    ],
)
def test_bad_input_of_the_command(app: typer.Typer, arguments: list[str], message: str) -> None:
    with pytest.raises(tint.TintError, match=message):
        CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_no_number_is_cut_off_in_a_narrow_terminal(app: typer.Typer, short: Path) -> None:
    assert_whole_numbers(app, str(short))


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["pythia-14m", "opt-2.7b", "Llama-3.1-405B"])
def test_nor_is_one_of_a_large_model(app: typer.Typer, name: str) -> None:
    assert_whole_numbers(app, name)


def assert_whole_numbers(app: typer.Typer, name: str) -> None:
    done = CliRunner().invoke(app, [name], env={"COLUMNS": "80"})
    assert "…" not in done.stdout
    assert f"{formula(name).total:,} parameters" in done.stdout


def test_thousands_of_blocks_are_refused_before_anything_is_built(app: typer.Typer, tmp_path: Path) -> None:
    config = {"model_type": "gpt2", "n_embd": 12, "n_layer": 2000, "n_head": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(tint.TintError, match="has 2000 blocks; sizes are counted up to 400"):
        CliRunner().invoke(app, [str(tmp_path)], catch_exceptions=False)


def test_a_model_without_a_network_is_counted_all_the_same(app: typer.Typer, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    config = {"model_type": "gpt2", "n_embd": 12, "n_layer": 2, "n_head": 3, "layer_norm_epsilon": 0.0}
    path.write_text(json.dumps(config))
    done = CliRunner().invoke(app, [str(path)])
    assert done.exit_code == 0 and "no compiled network: the norm" in done.stdout
    with pytest.raises(tint.TintError, match="has an epsilon of 0"):
        CliRunner().invoke(app, [str(path), "--tokens", "8"], catch_exceptions=False)
