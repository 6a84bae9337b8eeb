"""Attack the pages of the portal: CSRF, headers, cookies, hosts and broken input."""

from __future__ import annotations

from benchmarks.trust_parts.attacks.browser import Browser, send_raw
from benchmarks.trust_parts.attacks.registry import attack, control, defended
from benchmarks.trust_parts.attacks.target import PASSWORD, AttackTarget

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@attack("a form of another site without the CSRF token")
def form_without_a_token(target: AttackTarget) -> None:
    browser = target.signed_in(target.member)
    answer = browser.ask("POST", f"/workloads/{target.notebook}/cancel/", b"why=x", FORM)
    defended(answer.status == 403, f"it is answered with {answer.status}")
    state = target.member.program.get(f"workloads/{target.notebook}/").json()["state"]
    defended(state == "running", f"the workload is {state}")


@attack("a form with the CSRF token of another browser")
def form_with_a_foreign_token(target: AttackTarget) -> None:
    attacker = target.browser()
    attacker.get("/accounts/login/")
    browser = target.signed_in(target.member)
    body = f"csrfmiddlewaretoken={attacker.cookies['gpupool_csrf']}".encode()
    answer = browser.ask("POST", "/accounts/logout/", body, FORM)
    defended(answer.status == 403 and browser.is_signed_in(), f"it is answered with {answer.status}")


@attack("a form with the right token from another origin")
def form_of_another_origin(target: AttackTarget) -> None:
    browser = target.signed_in(target.member)
    for origin in ("https://evil.example", "null", f"http://127.0.0.1:{target.edge_port}"):
        answer = browser.form("/accounts/logout/", {}, Origin=origin)
        defended(answer.status == 403, f"the origin {origin} is answered with {answer.status}")
    defended(browser.is_signed_in(), "another site signs the person out")


@attack("a request to the API with the session of a page and without the CSRF token")
def api_request_of_another_site(target: AttackTarget) -> None:
    browser = target.signed_in(target.member)
    for kind in ("application/json", "text/plain", "application/x-www-form-urlencoded"):
        answer = browser.ask("POST", "/api/v1/tokens/", b'{"name": "stolen"}', {"Content-Type": kind})
        defended(answer.status in (403, 415), f"{kind} is answered with {answer.status}")


@attack("answers of the API that another site may read")
def api_read_by_another_site(target: AttackTarget) -> None:
    browser = target.signed_in(target.member)
    for path in ("/api/v1/me/", "/"):
        answer = browser.get(path, Origin="https://evil.example")
        defended("Access-Control-Allow-Origin" not in answer.headers, f"{path} allows another origin")


@attack("another method in a header")
def method_override(target: AttackTarget) -> None:
    browser = target.signed_in(target.member)
    answer = browser.get("/accounts/logout/?_method=POST", X_HTTP_Method_Override="POST", X_Method="POST")
    defended(answer.status < 500 and browser.is_signed_in(), "a GET is carried out as a POST")


@attack("requests with another Host header")
def foreign_host(target: AttackTarget) -> None:
    for host in ("evil.example", f"evil.example:{target.site.port}", "127.0.0.1.evil.example", "[::1", ""):
        answer = Browser(target.site.port, host or " ").get("/accounts/login/")
        defended(answer.status == 400, f"{host!r} is answered with {answer.status}")


@attack("links that follow X-Forwarded-Host and X-Forwarded-Proto")
def forwarded_host(target: AttackTarget) -> None:
    forged = {"X_Forwarded_Host": "evil.example", "X_Forwarded_Proto": "https", "X_Forwarded_Port": "1"}
    browser = target.browser()
    answer = browser.get("/", **forged)
    defended("evil.example" not in answer.location + answer.text, "the answer names the attacker's host")


@attack("a page of the portal in a frame of another site")
def framed_page(target: AttackTarget) -> None:
    browser = target.signed_in(target.member)
    for path in ("/", "/tokens/", "/jobs/"):
        defended(browser.get(path).headers.get("X-Frame-Options") == "DENY", f"{path} may be framed")
    kind = browser.get("/").headers
    defended(kind.get("X-Content-Type-Options") == "nosniff", "types are guessed")
    defended(kind.get("Referrer-Policy") == "same-origin", "addresses leave the site")


@attack("private answers in the cache of a browser or a proxy")
def cached_answer(target: AttackTarget) -> None:
    browser = target.signed_in(target.member)
    for path in ("/", "/jobs/", "/api/v1/me/", "/api/v1/workloads/"):
        value = browser.get(path).headers.get("Cache-Control", "")
        defended("no-store" in value, f"{path} may be stored: {value!r}")


@attack("the versions of the servers")
def server_versions(target: AttackTarget) -> None:
    for port, path in ((target.site.port, "/accounts/login/"), (target.edge_port, "/healthz")):
        headers = Browser(port).get(path).headers
        for name in ("Server", "X-Powered-By", "Via"):
            value = headers.get(name, "")
            defended(not any(sign.isdigit() for sign in value), f"port {port}: {name} is {value!r}")


@attack("cookies that scripts can read, or that other sites send")
def cookie_attributes(target: AttackTarget) -> None:
    browser = target.browser()
    browser.get("/accounts/login/")
    answer = browser.form("/accounts/login/", {"login": target.member.name, "password": PASSWORD})
    lines = answer.headers.get_all("Set-Cookie", [])
    control(any(line.startswith("gpupool_session=") for line in lines), "the sign-in sets a cookie")
    for line in lines:
        parts = {part.strip().lower() for part in line.split(";")[1:]}
        defended("httponly" in parts, f"scripts can read {line.split('=')[0]}")
        defended(parts & {"samesite=lax", "samesite=strict"}, f"other sites send {line.split('=')[0]}")


@attack("markup in names")
def markup_in_names(target: AttackTarget) -> None:
    mark = "<img src=x onerror=alert(1)>"
    made = target.member.program.made("jobs/", target.job(name=f"x{mark}", command=f"echo '{mark}'"))
    browser = target.signed_in(target.member)
    for path in ("/jobs/", f"/jobs/{made['id']}/", "/queue/", f"/search/?q=x{mark.replace(' ', '%20')}"):
        page = browser.get(path)
        control(page.status == 200, f"{path} answers {page.status}")
        defended(mark not in page.text, f"{path} contains the markup")


@attack("files outside the static folder")
def path_out_of_static(target: AttackTarget) -> None:
    for port in (target.site.port, target.edge_port):
        for path in (
            "/static/../environment.json",
            "/static/%2e%2e/secrets.json",
            "/static/..%2f..%2fsecrets.json",
            "/static//etc/passwd",
            "/static/....//....//etc/passwd",
            "/%2e%2e/%2e%2e/etc/passwd",
        ):
            answer = Browser(port).get(path)
            bad = "DATABASE_URL" in answer.text or "root:" in answer.text or '"django"' in answer.text
            defended(not bad and answer.status < 500, f"{path} is answered with {answer.status}")


@attack("broken text in addresses, headers and bodies")
def broken_text(target: AttackTarget) -> None:
    browser = target.signed_in(target.member)
    for path in (
        "/search/?q=%00",
        "/search/?q=%ff%fe",
        "/jobs/?page=99999999999999999999",
        "/jobs/?state=%F0%9F",
    ):
        defended(browser.get(path).status < 500, f"{path} fails")
    for body in (b"", b"{", b"[]", b'"x"', b"\xff\xfe", b'{"name": "\\u0000"}', b"[" * 5000):
        headers = {
            "Authorization": f"Bearer {target.member.program.token}",
            "Content-Type": "application/json",
        }
        answer = target.browser().ask("POST", "/api/v1/jobs/", body, headers)
        defended(answer.status in (400, 413), f"{body[:20]!r} is answered with {answer.status}")


@attack("a body that is larger than allowed")
def huge_body(target: AttackTarget) -> None:
    head = (
        f"POST /api/v1/jobs/ HTTP/1.1\r\nHost: 127.0.0.1:{target.site.port}\r\n"
        f"Authorization: Bearer {target.member.program.token}\r\nContent-Type: application/json\r\n"
        "Content-Length: 4000000000\r\n\r\n"
    )
    answer = send_raw(target.site.port, head.encode() + b"{" * 1000)
    defended(not answer.startswith(b"HTTP/1.1 2"), "it is accepted")
    control(target.member.program.get("me/").status == 200, "the portal still answers")


@attack("a second request hidden in the first one")
def smuggled_request(target: AttackTarget) -> None:
    for port in (target.site.port, target.edge_port):
        hidden = f"GET /accounts/login/?smuggled HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"
        head = f"POST /accounts/login/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        both = (
            f"{head}Content-Length: {len(hidden) + 5}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"
        )
        answer = send_raw(port, both.encode())
        defended(answer.count(b"HTTP/1.1 ") <= 1, f"port {port} answers twice")
        two = f"{head}Content-Length: 0\r\nContent-Length: {len(hidden)}\r\n\r\n{hidden}"
        answer = send_raw(port, two.encode())
        defended(answer.count(b"HTTP/1.1 ") <= 1, f"port {port} answers twice to two lengths")


@attack("details of the program in error pages")
def details_in_errors(target: AttackTarget) -> None:
    browser = target.signed_in(target.member)
    for path in ("/no-such-page/", "/jobs/00000000-0000-0000-0000-000000000000/", "/api/v1/no-such/"):
        answer = browser.get(path)
        control(answer.status == 404, f"{path} answers {answer.status}")
        for word in ("Traceback", "settings.py", "DATABASE_URL", "site-packages", "DEBUG"):
            defended(word not in answer.text, f"{path} shows {word}")


@attack("files with secrets that other users of the machine can read")
def readable_secrets(target: AttackTarget) -> None:
    state = target.site.folder / "site"
    for name in ("secrets.json", "environment.json"):
        mode = (state / name).stat().st_mode & 0o077
        defended(mode == 0, f"{name} has the mode {mode:o} for others")
    for path in target.identity_files():
        defended(path.stat().st_mode & 0o077 == 0, f"{path.name} of a host can be read")
