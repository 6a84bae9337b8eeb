"""Attack sessions, passwords and one-time links."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.trust_parts.attacks.browser import Browser
from benchmarks.trust_parts.attacks.registry import attack, control, defended
from benchmarks.trust_parts.attacks.target import PASSWORD, AttackTarget, Person, link_path, text_between

NEW_PASSWORD = "another long and private sentence"
TOO_MANY = "Too many"
DELAYED_AT = 5  # the wrong password after which the next attempt is delayed


def change_password(browser: Browser) -> None:
    """Change the password of the person who is signed in."""
    page = browser.get("/accounts/password/change/")
    control(page.status == 200, f"the page for a new password answers {page.status}")
    fields = {"oldpassword": PASSWORD, "password1": NEW_PASSWORD, "password2": NEW_PASSWORD}
    answer = browser.form("/accounts/password/change/", fields)
    control(answer.status == 302, f"the password is changed: {answer.status}")


def _session_ends(target: AttackTarget, change: Callable[[Person], Any]) -> None:
    person = target.person("faults")
    stolen = target.signed_in(person)
    change(person)
    defended(not stolen.is_signed_in(), "a stolen session still works")


@attack("a stolen session after the person changed the password")
def session_after_a_new_password(target: AttackTarget) -> None:
    person = target.person()
    own, stolen = target.signed_in(person), target.signed_in(person)
    change_password(own)
    control(own.is_signed_in(), "the session that made the change continues")
    defended(not stolen.is_signed_in(), "a stolen session still works")


@attack("a stolen session after an operator changed the person's role")
def session_after_a_new_role(target: AttackTarget) -> None:
    program = target.operator.program
    _session_ends(target, lambda who: program.made(f"people/{who.name}/roles/", {"auditor": True}))


@attack("a stolen session after an operator changed the e-mail address")
def session_after_a_new_address(target: AttackTarget) -> None:
    program = target.operator.program
    _session_ends(
        target,
        lambda who: program.made(f"people/{who.name}/address/", {"email": f"new-{who.name}@example.org"}),
    )


@attack("a stolen session after an operator reset the password")
def session_after_a_reset_password(target: AttackTarget) -> None:
    _session_ends(target, lambda who: target.operator.program.made(f"people/{who.name}/reset-password/", {}))


@attack("a stolen session after an operator reset the second factor")
def session_after_a_reset_second_factor(target: AttackTarget) -> None:
    program = target.operator.program
    _session_ends(target, lambda who: program.made(f"people/{who.name}/reset-second-factor/", {}))


@attack("a stolen session after an operator ended the sessions")
def session_after_its_end_by_an_operator(target: AttackTarget) -> None:
    _session_ends(target, lambda who: target.operator.program.made(f"people/{who.name}/end-sessions/", {}))


@attack("a cookie and a token of an account that was closed and opened again")
def access_of_a_reopened_account(target: AttackTarget) -> None:
    person, program = target.person(), target.operator.program
    browser = target.signed_in(person)
    program.made(f"people/{person.name}/close/", {"why": "left"})
    defended(not browser.is_signed_in(), "the session of a closed account works")
    defended(person.program.get("me/").status == 401, "the token of a closed account works")
    program.made(f"people/{person.name}/open/", {})
    defended(not browser.is_signed_in(), "the cookie works again")
    defended(person.program.get("me/").status == 401, "the token works again")
    control(target.signed_in(person), "the person can sign in again")


@attack("the replay of a cookie after its person signed out")
def cookie_after_a_sign_out(target: AttackTarget) -> None:
    browser = target.signed_in(target.person())
    copy = Browser(browser.port, cookies=dict(browser.cookies))
    control(copy.is_signed_in(), "the copy of the cookie works before")
    browser.form("/accounts/logout/", {})
    defended(not copy.is_signed_in(), "the copied cookie still works")


@attack("a session id that the attacker chose before the sign-in")
def fixed_session_id(target: AttackTarget) -> None:
    person, browser = target.person(), target.browser()
    browser.cookies["gpupool_session"] = chosen = "chosenbytheattacker0123456789abcd"
    control(browser.sign_in(person.name, PASSWORD).status == 302, "the person signs in")
    defended(browser.cookies["gpupool_session"] != chosen, "the session keeps the chosen id")
    attacker = Browser(browser.port, cookies={"gpupool_session": chosen})
    defended(not attacker.is_signed_in(), "the chosen id is signed in")


@attack("guesses of a password")
def guessed_password(target: AttackTarget) -> None:
    person = target.person()
    for number in range(DELAYED_AT):
        answer = target.browser().sign_in(person.name, f"wrong {number}")
        control(TOO_MANY not in answer.text, "the first guesses are answered")
    answer = target.browser().sign_in(person.name, PASSWORD)
    defended(answer.status != 302 and TOO_MANY in answer.text, f"guess 6 is answered with {answer.status}")


@attack("guesses of a password with another X-Forwarded-For each")
def guesses_with_forged_addresses(target: AttackTarget) -> None:
    person = target.person()
    for number in range(DELAYED_AT):
        forged = {"X_Forwarded_For": f"203.0.113.{number}"}
        target.browser().sign_in(person.name, f"wrong {number}", **forged)
    answer = target.browser().sign_in(person.name, PASSWORD, X_Forwarded_For="203.0.113.200")
    defended(answer.status != 302, "a forged address starts a new count")


@attack("guesses by user name and by e-mail address in turn")
def guesses_by_name_and_address(target: AttackTarget) -> None:
    person = target.person()
    logins = (person.name, person.row.email, person.name.upper(), person.row.email.upper(), person.name)
    for login in logins:
        target.browser().sign_in(login, "wrong")
    answer = target.browser().sign_in(person.row.email, PASSWORD)
    defended(answer.status != 302, "the e-mail address has a count of its own")


@attack("wrong passwords of a stranger that lock a person out")
def lock_out(target: AttackTarget) -> None:
    person = target.person()
    own = target.signed_in(person)
    own.form("/accounts/logout/", {})
    for number in range(DELAYED_AT):
        target.browser().sign_in(person.name, f"wrong {number}")
    control(target.browser().sign_in(person.name, PASSWORD).status != 302, "the stranger is delayed")
    defended(own.sign_in(person.name, PASSWORD).status == 302, "the person is locked out")


@attack("the search for accounts on the page for a forgotten password")
def accounts_found_by_a_reset(target: AttackTarget) -> None:
    person = target.person()
    answers = []
    for address in (person.row.email, "nobody-has-this@example.org"):
        browser = target.browser()
        browser.get("/accounts/password/reset/")
        answer = browser.form("/accounts/password/reset/", {"email": address})
        answers.append((answer.status, answer.location))
    control(answers[0][0] == 302, f"the page accepts an address: {answers[0]}")
    defended(answers[0] == answers[1], f"the answers differ: {answers}")


@attack("a Host header that leads the reset link to the attacker")
def reset_link_to_another_host(target: AttackTarget) -> None:
    person = target.person()
    for name in ("Host", "X-Forwarded-Host", "X-Host", "Forwarded"):
        browser = target.browser()
        browser.get("/accounts/password/reset/")
        value = "host=evil.example" if name == "Forwarded" else "evil.example"
        body = f"email={person.row.email}&csrfmiddlewaretoken={browser.cookies['gpupool_csrf']}".encode()
        sent = {name: value, "Content-Type": "application/x-www-form-urlencoded"}
        answer = browser.ask("POST", "/accounts/password/reset/", body, sent)
        defended(answer.status in (302, 400), f"{name}: {answer.status}")
        defended("evil.example" not in answer.location, f"{name} is in the redirect")
    defended("evil.example/accounts" not in target.logs(), "a mail has a link to the attacker")


@attack("one-time links in the logs")
def reset_link_in_the_log(target: AttackTarget) -> None:
    person = target.person()
    link = target.operator.program.made(f"people/{person.name}/reset-password/", {})["link"]
    control(target.browser().get(link_path(link)).status in (200, 302), "the link opens")
    browser = target.browser()
    browser.get("/accounts/password/reset/")
    browser.form("/accounts/password/reset/", {"email": target.person().row.email})
    target.wait(lambda: "[gpupool]" in target.logs(), "the mail is in the log")
    key = text_between(link, r"/reset/key/([^/]+)/")
    control(key, "the link has a key")
    defended(key not in target.logs(), "the key of an operator's link is in a log")
    found = text_between(target.logs(), r"/reset/key/(\w+-\w{20,}-?\w*)")
    defended(not found, "the key of a mail is in a log")


def _set_password(browser: Browser, link: str) -> int:
    page = browser.get(link_path(link))
    if page.status == 302:
        browser.get(page.location)
        fields = {"password1": NEW_PASSWORD, "password2": NEW_PASSWORD}
        return browser.form(page.location, fields).status
    return page.status


@attack("a reset link that was used already")
def reset_link_used_twice(target: AttackTarget) -> None:
    person = target.person()
    link = target.operator.program.made(f"people/{person.name}/reset-password/", {})["link"]
    control(_set_password(target.browser(), link) == 302, "the link sets a password")
    control(target.browser().sign_in(person.name, NEW_PASSWORD).status == 302, "the new password works")
    defended(_set_password(target.browser(), link) != 302, "the link sets a password twice")


@attack("an earlier reset link after a newer one was made")
def earlier_reset_link(target: AttackTarget) -> None:
    person = target.person()
    links = [target.operator.program.made(f"people/{person.name}/reset-password/", {})["link"] for _ in "12"]
    defended(_set_password(target.browser(), links[0]) != 302, "the earlier link works")
    control(_set_password(target.browser(), links[1]) == 302, "the newer link works")


@attack("the first run of a site that has accounts")
def second_first_run(target: AttackTarget) -> None:
    from portal.models import User

    browser = target.browser()
    browser.get("/accounts/login/")
    browser.get("/first-run/")
    fields = {"code": "guess", "organisation": "Mine", "username": "intruder", "email": "i@example.org"}
    browser.form("/first-run/", {**fields, "password": NEW_PASSWORD, "password_again": NEW_PASSWORD})
    exists = target.run_in_database(lambda: User.objects.filter(username="intruder").exists())
    defended(not exists, "the attacker is an operator")


@attack("an account that a stranger makes")
def open_registration(target: AttackTarget) -> None:
    from portal.models import User

    browser = target.browser()
    browser.get("/accounts/signup/")
    fields = {"username": "self-made", "password1": NEW_PASSWORD, "password2": NEW_PASSWORD}
    browser.form("/accounts/signup/", fields)
    exists = target.run_in_database(lambda: User.objects.filter(username="self-made").exists())
    defended(not exists and not browser.is_signed_in(), "a stranger has an account")


@attack("a redirect to another site after the sign-in")
def redirect_after_the_sign_in(target: AttackTarget) -> None:
    person = target.person()
    for address in ("https://evil.example/", "//evil.example/", "/\\evil.example/", "javascript:alert(1)"):
        browser = target.browser()
        answer = browser.sign_in(person.name, PASSWORD, f"/accounts/login/?next={address}")
        control(answer.status == 302, "the person signs in")
        leads = answer.location.replace("\\", "/")
        defended(leads.startswith("/") and not leads.startswith("//"), f"{address}: {answer.location}")


@attack("a link of another site that signs a person out")
def sign_out_by_a_link(target: AttackTarget) -> None:
    browser = target.signed_in(target.person())
    browser.get("/accounts/logout/")
    defended(browser.is_signed_in(), "a GET signs the person out")


@attack("the address of a calendar feed after the sessions ended")
def calendar_feed_after_the_end(target: AttackTarget) -> None:
    from portal.models import User
    from portal.web.calendar.ical_feed import ical_feed_token

    person = target.person("faults")
    token = target.run_in_database(lambda: ical_feed_token(User.objects.get(pk=person.row.pk)))
    address = f"/calendar/feed/{token}.ics"
    control(target.browser().get(address).status == 200, "the feed answers")
    target.operator.program.made(f"people/{person.name}/end-sessions/", {})
    defended(target.browser().get(address).status in (403, 404), "the feed still answers")


@attack("a break-glass code that is guessed")
def guessed_break_glass_code(target: AttackTarget) -> None:
    browser = target.browser()
    for code in ("guess", "0" * 43, "%00", "x" * 3000):
        browser.get("/accounts/login/")
        browser.get(f"/accounts/break-glass/{code}/")
        answer = browser.form(f"/accounts/break-glass/{code}/", {})
        defended(answer.status < 500 and not browser.is_signed_in(), f"code {code[:10]}: {answer.status}")


@attack("an answer of an identity provider for a sign-in that nobody began")
def forged_provider_answer(target: AttackTarget) -> None:
    created = target.operator.program.post(
        "identity/providers/",
        {
            "slug": "forged",
            "name": "Forged",
            "issuer": "https://idp.example.org",
            "client_id": "gpupool",
            "secret": "a-very-private-secret",
        },
    )
    control(created.status == 201, f"a provider is set: {created.status} {created.text[:300]}")
    for query in ("code=x&state=forged", "code=x", "error=access_denied", "state=%00&code=%ff"):
        browser = target.browser()
        browser.get("/accounts/login/")
        answer = browser.get(f"/accounts/oidc/forged/login/callback/?{query}")
        defended(answer.status < 500, f"{query} is answered with {answer.status}")
        defended(not browser.is_signed_in(), f"{query} signs somebody in")
    seen = target.operator.program.get("identity/").text
    control("idp.example.org" in seen, "operators see the provider")
    defended("a-very-private-secret" not in seen, "the API returns the client secret")


@attack("a member who sets an identity provider or a rule that makes operators")
def member_sets_a_provider(target: AttackTarget) -> None:
    body = {"slug": "own", "name": "Own", "issuer": "https://evil.example", "client_id": "x"}
    program = target.member.program
    defended(program.post("identity/providers/", {**body, "secret": "y"}).status == 403, "a provider")
    rule = {"provider": "own", "claim": "groups", "value": "all", "role": "operator"}
    defended(program.post("identity/rules/", rule).status in (403, 404), "a rule")
    answer = program.ask("PUT", "identity/local-sign-in/", {"allowed": False})
    defended(answer.status == 403, "a member turns passwords off")


@attack("the pages of the identity library that the portal replaces")
def replaced_provider_pages(target: AttackTarget) -> None:
    browser = target.signed_in(target.member)
    for path in ("/accounts/3rdparty/", "/accounts/3rdparty/signup/", "/accounts/social/login/cancelled/"):
        defended(browser.get(path).status == 404, f"{path} answers")
    defended(browser.get("/accounts/email/").status in (302, 404), "people change their address themselves")
