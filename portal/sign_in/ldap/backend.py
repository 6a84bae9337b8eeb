"""Connect to an LDAP directory with django-auth-ldap. Importing this module needs the extra ``ldap``."""

from __future__ import annotations

import contextlib
import socket
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import certifi
import ldap
from django_auth_ldap import config as library
from django_auth_ldap.backend import LDAPBackend, _LDAPUser
from django_auth_ldap.config import LDAPSearch, LDAPSettings

from portal.sign_in.ldap.entries import escaped
from portal.sign_in.ldap.settings import DirectorySettings
from portal.sign_in.oidc.providers import ProviderSettings
from portal.sign_in.oidc.refusals import SignInRefused

TIMEOUT_SECONDS = 5
SYSTEM_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"  # Debian's file
LDAPS_PORT = 636
GROUP_TYPES = {
    "groupOfNames": library.NestedGroupOfNamesType,
    "groupOfUniqueNames": library.NestedGroupOfUniqueNamesType,
    "posixGroup": library.PosixGroupType,
    "activeDirectory": library.NestedActiveDirectoryGroupType,
}
GROUP_CLASSES = {"activeDirectory": "group"}  # the other kinds are named like their object class


class FilterSearch(LDAPSearch):  # type: ignore[misc]
    """A search whose filter is complete. Percent signs in it stand for themselves.

    An error of the directory is raised as SignInRefused, which the library does not catch. It would otherwise
    treat a directory that does not answer like an unknown person.
    """

    provider: ProviderSettings

    def search_with_additional_term_string(self, filterstr: str) -> FilterSearch:
        """Return the search for entries that also match another filter."""
        found: FilterSearch = super().search_with_additional_term_string(filterstr)
        found.provider = self.provider
        return found

    def execute(self, connection: Any, filterargs: Any = (), escape: bool = True) -> list[tuple[str, Any]]:
        """Return the entries without references to other servers. Raises SignInRefused."""
        try:
            results = connection.search_ext_s(
                self.base_dn, self.scope, self.filterstr, self.attrlist, timeout=TIMEOUT_SECONDS
            )
        except ldap.NO_SUCH_OBJECT:
            raise SignInRefused(
                "directory_base_missing", name=self.provider.name, base=self.base_dn
            ) from None
        except ldap.LDAPError as error:
            raise refusal_of(error, self.provider) from None
        found: list[tuple[str, Any]] = self._process_results(results)
        return found


class DirectoryUser(_LDAPUser):  # type: ignore[misc]
    """A person of a directory, read by the service account."""

    backend: PortalLdapBackend

    def __init__(self, backend: PortalLdapBackend, username: str, connection: Any = None) -> None:
        super().__init__(backend, username=username)
        self._connection, self._connection_bound = connection, connection is not None

    def check_password(self, password: str) -> bool:
        """Return True if the directory accepts the password of this person. Uses a connection of its own.

        Raises SignInRefused if the directory does not answer.
        """
        own = DirectoryUser(self.backend, self._username)
        own._user_dn = self.dn
        try:
            own._authenticate_user_dn(password)
        except self.AuthenticationFailed:
            return False
        except ldap.LDAPError as error:
            raise refusal_of(error, self.backend.provider) from None
        finally:
            own.disconnect()
        return True

    def connect(self) -> Any:
        """Return a connection that is bound as the service account. Raises SignInRefused."""
        try:
            return self.connection
        except ldap.INVALID_CREDENTIALS:
            raise SignInRefused("directory_bind_refused", name=self.backend.provider.name) from None
        except ldap.LDAPError as error:
            raise refusal_of(error, self.backend.provider) from None

    def disconnect(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            with contextlib.suppress(ldap.LDAPError):
                self._connection.unbind_s()

    @property
    def group_infos(self) -> list[tuple[str, str]]:
        """Return DN and name of each group of the person, also of groups that contain these groups."""
        if self.settings.GROUP_SEARCH is None:
            return []
        found = self.settings.GROUP_TYPE.user_groups(self, self.settings.GROUP_SEARCH)
        return [(dn, str((entry.get("cn") or [""])[0])) for dn, entry in found]


class PortalLdapBackend(LDAPBackend):  # type: ignore[misc]
    """A backend with the settings of one provider."""

    def __init__(self, provider: ProviderSettings, directory: DirectorySettings, ca_file: str) -> None:
        self.provider, self.directory = provider, directory
        self.settings = LDAPSettings(
            f"LDAP_PROVIDER_{provider.slug}_",
            {
                "SERVER_URI": directory.url,
                "START_TLS": directory.start_tls,
                "BIND_DN": directory.bind_dn,
                "BIND_PASSWORD": provider.secret,
                "CONNECTION_OPTIONS": _connection_options(ca_file),
                "USER_ATTRLIST": directory.attributes,
                "GROUP_TYPE": GROUP_TYPES[directory.group_kind](),
                "GROUP_SEARCH": self._group_search() if directory.group_base else None,
            },
        )

    def find(self, condition: str, connection: Any) -> DirectoryUser | None:
        """Return the only person who matches a filter and may use the portal, or None."""
        users = f"(&{self.directory.user_filter}{condition})"
        self.settings.USER_SEARCH = self._search(self.directory.user_base, users, self.directory.attributes)
        user = DirectoryUser(self, "", connection)
        return user if user.dn else None

    def by_username(self, username: str) -> str:
        """Return the filter for a user name. Its characters stand for themselves."""
        return f"({self.directory.username_attribute}={escaped(username)})"

    def _group_search(self) -> FilterSearch:
        kind = self.directory.group_kind
        return self._search(
            self.directory.group_base, f"(objectClass={GROUP_CLASSES.get(kind, kind)})", ["cn"]
        )

    def _search(self, base: str, condition: str, attributes: list[str]) -> FilterSearch:
        search = FilterSearch(base, ldap.SCOPE_SUBTREE, condition, attributes)
        search.provider = self.provider
        return search


@contextlib.contextmanager
def open_backend(
    provider: ProviderSettings, directory: DirectorySettings
) -> Iterator[tuple[PortalLdapBackend, Any]]:
    """Yield a backend and a connection that is bound as the service account. Raises SignInRefused."""
    with tempfile.TemporaryDirectory() as folder:
        ca_file = Path(folder) / "certificates.pem"
        ca_file.write_text(_trusted_certificates(provider))
        backend = PortalLdapBackend(provider, directory, str(ca_file))
        service = DirectoryUser(backend, "")
        try:
            yield backend, service.connect()
        finally:
            service.disconnect()


def refusal_of(error: ldap.LDAPError, provider: ProviderSettings) -> SignInRefused:
    """Return the refusal for an error of the directory."""
    details = error.args[0] if error.args and isinstance(error.args[0], dict) else {}
    said = f"{details.get('desc', '')} {details.get('info', '')}".strip()
    url = provider.directory.url if provider.directory else ""
    if isinstance(error, ldap.REFERRAL | ldap.PARTIAL_RESULTS):
        return SignInRefused("directory_referral", name=provider.name)
    if isinstance(error, ldap.CONNECT_ERROR) or (
        isinstance(error, ldap.SERVER_DOWN) and _certificate_is_refused(provider)
    ):
        return SignInRefused("certificate_not_trusted", name=provider.name)
    if isinstance(error, ldap.SERVER_DOWN | ldap.TIMEOUT | ldap.TIMELIMIT_EXCEEDED):
        return SignInRefused("provider_unreachable", name=provider.name, url=url)
    return SignInRefused("directory_error", name=provider.name, problem=ascii(said)[1:-1][:200])


def _certificate_is_refused(provider: ProviderSettings) -> bool:
    """Return True if the server answers with a certificate that is not trusted.

    The library reports this like a server that does not answer. With StartTLS it reports CONNECT_ERROR.
    """
    parts = urlsplit(provider.address)
    if parts.scheme != "ldaps" or not parts.hostname:
        return False
    context = ssl.create_default_context(cadata=_trusted_certificates(provider))
    try:
        with (
            socket.create_connection((parts.hostname, parts.port or LDAPS_PORT), TIMEOUT_SECONDS) as link,
            context.wrap_socket(link, server_hostname=parts.hostname),
        ):
            return False
    except ssl.SSLCertVerificationError:
        return True
    except OSError:
        return False


def _connection_options(ca_file: str) -> dict[int, Any]:
    """Return the options of a connection: no referrals, short waits, and certificates that must be valid.

    The last option makes the others about TLS effective.
    """
    return {
        ldap.OPT_REFERRALS: 0,
        ldap.OPT_NETWORK_TIMEOUT: TIMEOUT_SECONDS,
        ldap.OPT_TIMEOUT: TIMEOUT_SECONDS,
        ldap.OPT_X_TLS_REQUIRE_CERT: ldap.OPT_X_TLS_DEMAND,
        ldap.OPT_X_TLS_CACERTFILE: ca_file,
        ldap.OPT_X_TLS_NEWCTX: 0,
    }


def _trusted_certificates(provider: ProviderSettings) -> str:
    """Return the certificates of the system and those of the provider's settings."""
    system = ssl.get_default_verify_paths().cafile or SYSTEM_CERTIFICATES
    if not Path(system).exists():
        system = certifi.where()
    return f"{Path(system).read_text()}\n{provider.ca_certificates}"
