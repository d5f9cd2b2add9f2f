"""A viewer sees everything and changes nothing, whichever way it is tried."""

from __future__ import annotations

from playwright.async_api import expect

from tests.browser.conftest import GATE, People
from tests.support.stack import LiveStack, wait_until


def denied(stack: LiveStack) -> int:
    """How many denied attempts of the viewer the audit shows."""
    name = stack.users["viewer"]["name"]
    text = stack.sign_in("admin").get(f"/audit/?q={name}+denied").text
    return text.count("Denied</span>")


async def test_a_viewer_has_no_button_and_is_told_why(person: People, held_gate: str) -> None:
    for path in ("/", "/gates/"):
        page = await person("viewer", path)
        gate = page.locator(f"#gate-{GATE}")
        await expect(gate).to_contain_text("your role is viewer")
        await expect(gate.get_by_role("button")).to_have_count(0)


async def test_a_viewers_post_changes_nothing_and_is_audited(
    person: People, stack: LiveStack, held_gate: str
) -> None:
    before = denied(stack)
    page = await person("viewer")
    status = await page.evaluate(
        """async (gate) => (await fetch(`/gates/${gate}/unleash`, {
            method: "POST", headers: JSON.parse(document.body.getAttribute("hx-headers"))})).status""",
        GATE,
    )
    assert status == 403
    await expect(page.locator(f"#gate-{GATE} .state").first).not_to_have_text("Open")
    wait_until(lambda: denied(stack) == before + 1, "the denied POST is in the audit", 5)


async def test_a_viewers_socket_changes_nothing_and_is_audited(
    person: People, stack: LiveStack, held_gate: str
) -> None:
    before = denied(stack)
    page = await person("viewer")
    answer = await page.evaluate(
        """(gate) => new Promise((done) => {
            const socket = new WebSocket(`ws://${location.host}/ws/operators/?page=gates`);
            socket.onmessage = (event) => { if (event.data.startsWith("{")) done(JSON.parse(event.data)); };
            socket.onopen = () => socket.send(JSON.stringify({action: "gate.open", target: gate,
                    csrf: JSON.parse(document.body.getAttribute("hx-headers"))["X-CSRFToken"]}));
        })""",
        GATE,
    )
    assert answer["ok"] is False
    await expect(page.locator(f"#gate-{GATE} .state").first).not_to_have_text("Open")
    wait_until(lambda: denied(stack) == before + 1, "the denied frame is in the audit", 5)
