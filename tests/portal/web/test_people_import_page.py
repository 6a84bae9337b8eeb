"""Test the page that imports people, and the file with their links."""

from __future__ import annotations

from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import reverse

from portal.models import User
from tests.portal.web.work_samples import signed_in
from tests.world import World


def test_a_file_is_imported_after_its_lines_are_shown_and_the_links_are_downloaded_once(world: World) -> None:
    client, page = signed_in(world.operator), reverse("people-import")
    file = SimpleUploadedFile(
        "people.csv", "username;email;name\nren;ren@example.org;René\n".encode("latin-1")
    )
    shown = client.post(page, {"file": file})
    assert "1 new, 0 changed" in shown.content.decode() and not User.objects.filter(username="ren").exists()
    done = client.post(page, {"csv": shown.context["text"], "verb": "import"}, follow=True)
    assert "Download the links" in done.content.decode()
    assert User.objects.get(username="ren").get_full_name() == "René"
    links = client.post(reverse("people-import-links"))
    assert links["Cache-Control"] == "no-store" and "attachment" in links["Content-Disposition"]
    assert "ren,ren@example.org,http" in links.content.decode()
    assert client.post(reverse("people-import-links")).status_code == 302
    assert "Download the links" not in client.get(page).content.decode()


def test_wrong_lines_are_shown_first_and_cannot_be_imported(world: World) -> None:
    client = signed_in(world.operator)
    text = "username,email\nada,ada@example.org\nbob,nobody\n"
    page = client.post(reverse("people-import"), {"csv": text}).content.decode()
    assert page.index("bob") < page.index(">ada<") and "Import it" not in page
    refused = client.post(reverse("people-import"), {"csv": text, "verb": "import"})
    assert refused.status_code == 400 and not User.objects.filter(username="ada").exists()
