from __future__ import annotations

import random

import micrograd.engine as micrograd
import pytest

from mlsys_lab.widgets import element, graph_data

NODES = """(el) => Object.fromEntries([...el.shadowRoot.querySelectorAll("[data-node]")].map((g) =>
  [g.dataset.node, [...g.querySelectorAll("text")].map((t) => t.textContent)]))"""


def neuron():
    x, y, z = micrograd.Value(-2.0), micrograd.Value(5.0), micrograd.Value(-4.0)
    f = (x + y) * z
    return f, {"x": x, "y": y, "z": z, "f": f}


def shown(page) -> dict[str, list[str]]:
    """Every node's texts by label: label, operation, then value and gradient."""
    return {texts[0]: texts for texts in page.eval_on_selector("mlsys-backward", NODES).values()}


def box(page):
    return page.locator("mlsys-backward .figure")


def test_arrow_keys_step_through_the_pass(open_page) -> None:
    f, names = neuron()
    page = open_page(element("backward", graph=graph_data(f, names))._repr_html_())
    assert box(page).get_attribute("data-phase") == "start"
    assert shown(page)["f"] == ["f", "×", "value", "·", "grad", "·"]
    box(page).focus()
    phases = []
    for _ in range(6):
        page.keyboard.press("ArrowRight")
        phases.append(box(page).get_attribute("data-phase"))
    assert phases == ["forward", "forward", "seed", "backward", "backward", "end"]
    assert {name: (texts[-3], texts[-1]) for name, texts in shown(page).items()} == {
        "x": ("−2", "−4"), "y": ("5", "−4"), "z": ("−4", "3"), "v1": ("3", "−4"), "f": ("−12", "1"),
    }  # fmt: skip
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert shown(page)["v1"][-1] == "−4" and shown(page)["x"][-1] == "·"
    assert "∂f/∂v1 = z = −4, so v1 gets += 1 × −4 = −4" in page.locator("mlsys-backward .said").inner_text()
    page.keyboard.press("Home")
    assert box(page).get_attribute("data-step") == "0"
    page.keyboard.press("End")
    assert box(page).get_attribute("data-step") == "6"


def test_buttons_are_reached_by_tab_and_say_what_they_do(open_page) -> None:
    f, names = neuron()
    page = open_page(element("backward", graph=graph_data(f, names), step=1)._repr_html_())
    for label in ("First step", "Previous step", "Play", "Next step"):
        assert page.get_by_role("button", name=label).is_enabled()
    page.get_by_role("button", name="Next step").focus()
    page.keyboard.press("Enter")
    assert box(page).get_attribute("data-step") == "2"
    page.get_by_role("button", name="First step").click()
    assert page.get_by_role("button", name="Previous step").is_disabled()


def test_playing_reaches_the_end_and_stops(open_page) -> None:
    f, names = neuron()
    page = open_page(element("backward", graph=graph_data(f, names), step=3)._repr_html_())
    page.get_by_label("Speed").select_option("4")
    play = page.get_by_role("button", name="Play")
    # What the button offers is written down as it changes: on a busy machine the pass may end before a look at it.
    play.evaluate(
        """(button) => {
          offered = [];
          const write = () => offered.push(button.getAttribute("aria-label"));
          new MutationObserver(write).observe(button, { attributeFilter: ["aria-label"] });
        }"""
    )
    play.click()
    page.locator('mlsys-backward .figure[data-phase="end"]').wait_for()
    play.wait_for()
    assert page.evaluate("offered") == ["Pause", "Play"]


def test_other_inputs_change_values_and_gradients(open_page) -> None:
    f, names = neuron()
    f.backward()
    page = open_page(element("backward", graph=graph_data(f, names), step=6)._repr_html_())
    page.get_by_label("z", exact=True).fill("10")
    assert {name: (texts[-3], texts[-1]) for name, texts in shown(page).items()} == {
        "x": ("−2", "10"), "y": ("5", "10"), "z": ("10", "3"), "v1": ("3", "10"), "f": ("30", "1"),
    }  # fmt: skip


def test_a_gradient_that_the_engine_got_wrong_is_pointed_out(open_page) -> None:
    f, names = neuron()
    f.backward()
    names["x"].grad = 4.0
    page = open_page(element("backward", graph=graph_data(f, names), step=6)._repr_html_())
    said = page.locator("mlsys-backward .said").inner_text()
    assert said == "x: the recorded gradient is 4, the chain rule gives −4."


def test_an_operation_unknown_to_the_figure_leaves_the_recorded_numbers(open_page) -> None:
    x = micrograd.Value(0.5)
    root = micrograd.Value(0.4794, (x,), "sin")
    root.grad, x.grad = 1.0, 0.8776
    page = open_page(element("backward", graph=graph_data(root, {"x": x}), step=4)._repr_html_())
    assert shown(page)["x"][-1] == "0.8776" and shown(page)["v1"][-3] == "0.4794"
    assert page.get_by_text("Try other inputs").count() == 0


OPERATIONS = (
    lambda a, b: a + b,
    lambda a, b: a * b,
    lambda a, b: a.relu(),
    lambda a, b: a**2,
    lambda a, b: (a**2 + 1) ** -1,
)


def random_expression(rng: random.Random) -> micrograd.Value:
    pool = [micrograd.Value(rng.uniform(-2, 2)) for _ in range(3)]
    for _ in range(8):
        a, b = rng.choice(pool[-4:]), rng.choice(pool)
        pool.append(rng.choice(OPERATIONS)(a, b))
    root = sum(pool[3:], micrograd.Value(0.0))
    root.backward()
    return root


def test_the_chain_rule_in_the_figure_agrees_with_micrograd(open_module) -> None:
    rng = random.Random(7)
    graphs = [graph_data(random_expression(rng)) for _ in range(100)]
    page = open_module("backward", "evaluate")
    results = page.evaluate("(graphs) => graphs.map((graph) => evaluate(graph, {}))", graphs)
    for graph, result in zip(graphs, results, strict=True):
        assert result["values"] == pytest.approx({node["id"]: node["data"] for node in graph}, rel=1e-9, abs=1e-12)
        assert result["grads"] == pytest.approx({node["id"]: node["grad"] for node in graph}, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("seed", range(5))
def test_no_two_boxes_overlap_and_nothing_is_cut_off(open_page, width: int, seed: int) -> None:
    graph = graph_data(random_expression(random.Random(seed)))
    page = open_page(element("backward", graph=graph)._repr_html_(), width=width)
    boxes = page.eval_on_selector(
        "mlsys-backward",
        """(el) => [...el.shadowRoot.querySelectorAll(".node rect")].map((r) => r.getBoundingClientRect())
                  .map((r) => [r.left, r.top, r.right, r.bottom])""",
    )
    assert len(boxes) == len(graph)
    for i, (left, top, right, bottom) in enumerate(boxes):
        assert left >= 0 and right <= width
        for other in boxes[:i]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_without_a_script_the_fallback_is_what_shows(open_page) -> None:
    f, names = neuron()
    html = element("backward", graph=graph_data(f, names), fallback="<p>as a table</p>")._repr_html_()
    page = open_page(html.replace("mlsys-backward", "not-a-figure"))
    assert page.get_by_text("as a table").is_visible()
    page = open_page(html)
    assert not page.get_by_text("as a table").is_visible()


def test_keys_typed_into_a_figure_stay_there(open_page) -> None:
    f, names = neuron()
    page = open_page(element("backward", graph=graph_data(f, names))._repr_html_())
    page.evaluate("heard = []; document.addEventListener('keydown', (event) => heard.push(event.key))")
    page.get_by_label("z", exact=True).focus()
    for key in ("1", "ArrowRight", "Control+k"):
        page.keyboard.press(key)
    assert page.evaluate("heard") == ["Control", "k"]
    # JupyterLab listens before the figure can: this is how it is told to keep its shortcuts to itself.
    assert page.locator("mlsys-backward").get_attribute("data-lm-suppress-shortcuts") == "true"


def test_reduced_motion_stops_the_flow_along_edges(open_page) -> None:
    f, names = neuron()
    html = element("backward", graph=graph_data(f, names), step=4)._repr_html_()
    style = "(el) => getComputedStyle(el.shadowRoot.querySelector('.edge.backward')).animationName"
    assert open_page(html).eval_on_selector("mlsys-backward", style) == "flow"
    assert open_page(html, reduced_motion="reduce").eval_on_selector("mlsys-backward", style) == "none"


def test_numbers_are_written_for_people(open_module) -> None:
    page = open_module("backward", "number", "si")
    values = [0, -0.0, -12, 0.1 + 0.2, 1 / 3, -4e-5, 1234567.0]
    assert page.evaluate("(xs) => xs.map((x) => number(x))", values) == [
        "0",
        "0",
        "−12",
        "0.3",
        "0.3333",
        "−4.00e−5",
        "1.23e+6",
    ]
    pairs = [(9.89e14, "989 T"), (999.9e9, "1 T"), (0.0000103, "10.3 µ"), (1.0, "1 ")]
    assert [page.evaluate("(x) => si(x, 'B')", x) for x, _ in pairs] == [text + "B" for _, text in pairs]
