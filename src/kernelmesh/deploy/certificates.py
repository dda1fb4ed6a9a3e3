"""Certificates for a mesh of one's own: an authority, one leaf for each agent and client, and a look at given ones."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelmesh.errors import InvalidArgument, Verbatim
from kernelmesh.runtimes.membership import NAME

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

__all__ = ["create_authority", "faults", "issue", "need_cryptography"]

_AUTHORITY_DAYS = 3652
_LEAF_DAYS = 825
_EARLIER = datetime.timedelta(hours=1)  # clocks of other hosts may be behind
_HOST = re.compile(r"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")


def need_cryptography() -> None:
    """Refuse to go on without the library that makes and reads certificates."""
    try:
        import cryptography  # noqa: F401 (is it there?)
    except ImportError:
        raise ImportError("TLS needs the library cryptography: pip install 'kernelmesh[zenoh]'") from None


def create_authority(folder: str | os.PathLike[str]) -> Path:
    """Write `authority.pem` and `authority.key` into a folder, and give the first back.

    Whoever has the key can issue certificates that every agent trusts: only the certificate goes to other hosts.
    """
    need_cryptography()
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    folder = Path(folder)
    _refuse_old("create_authority", folder, "authority")
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("kernelmesh authority")
    builder = (
        _builder(name, name, key.public_key(), _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
    )
    return _write(folder, "authority", builder, signed_with=key, key=key)[0]


def issue(
    folder: str | os.PathLike[str], name: str, hosts: Sequence[str] = ("localhost", "127.0.0.1")
) -> tuple[Path, Path]:
    """Write `NAME.pem` and `NAME.key`, signed by the authority in the same folder, and give both back.

    `hosts` are the names and IP addresses at which others reach whoever is called so.
    """
    need_cryptography()
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509.oid import ExtendedKeyUsageOID

    folder = Path(folder)
    if not isinstance(name, str) or not NAME.fullmatch(name) or name == "authority":
        rule = "be 1 to 64 letters, digits, dots, dashes or underscores and not 'authority'"
        raise InvalidArgument("issue", "name", rule, name)
    alternatives = [x509.DNSName(name), *(_host(host) for host in hosts if host != name)]
    _refuse_old("issue", folder, name)
    if not (folder / "authority.pem").is_file() or not (folder / "authority.key").is_file():
        rule = "hold authority.pem and authority.key"
        raise InvalidArgument("issue", "folder", rule, str(folder), remedy="create_authority writes them")
    authority = x509.load_pem_x509_certificate((folder / "authority.pem").read_bytes())
    signer = load_pem_private_key((folder / "authority.key").read_bytes(), None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise InvalidArgument("issue", "authority.key", "be an elliptic curve key", Verbatim(type(signer).__name__))
    key = ec.generate_private_key(ec.SECP256R1())
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = (
        _builder(_name(name), authority.subject, key.public_key(), _LEAF_DAYS, authority.not_valid_after_utc)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    return _write(folder, name, builder, signed_with=signer, key=key)


def _name(text: str) -> x509.Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _host(host: object) -> x509.GeneralName:
    from cryptography import x509

    if not isinstance(host, str):
        raise InvalidArgument("issue", "hosts", "be names or IP addresses", host)
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        if not _HOST.fullmatch(host):
            raise InvalidArgument("issue", "hosts", "be names or IP addresses", host) from None
        return x509.DNSName(host)


def _usage(*, authority: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    days: int,
    latest: datetime.datetime | None = None,
) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    until = now + datetime.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(until if latest is None else min(until, latest))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _refuse_old(owner: str, folder: Path, name: str) -> None:
    """Keys are never overwritten: certificates that are in use would no longer fit them."""
    for path in (folder / f"{name}.key", folder / f"{name}.pem"):
        if path.exists():
            raise InvalidArgument(
                owner, "the file", "be new", str(path), remedy=f"remove {name}.pem and {name}.key to begin anew"
            )


def _write(
    folder: Path,
    name: str,
    builder: x509.CertificateBuilder,
    *,
    signed_with: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePrivateKey,
) -> tuple[Path, Path]:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    certificate = builder.sign(signed_with, hashes.SHA256())
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / f"{name}.pem", folder / f"{name}.key"
    for path, data, mode in (
        (paths[1], key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600),
        (paths[0], certificate.public_bytes(Encoding.PEM), 0o644),
    ):
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
    return paths


def faults(*, authority: Path, certificate: Path, key: Path, name: str | None) -> Iterator[ValueError]:
    """Everything that would keep an agent called `name` from proving who it is with these files (None: any name).

    Each is `Tls: authority must …`, with the name of the file it is about as its argument.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    files: dict[str, Any] = {}
    for argument, path, load, what in (
        ("authority", authority, x509.load_pem_x509_certificates, "one or more certificates"),
        ("certificate", certificate, x509.load_pem_x509_certificate, "a certificate"),
        ("key", key, lambda data: load_pem_private_key(data, None), "a private key without a password"),
    ):
        try:
            files[argument] = load(path.read_bytes())
        except OSError as error:
            rule = "be a file that can be read"
            yield InvalidArgument("Tls", argument, rule, Verbatim(f"{str(path)!r} ({error.strerror})"))
        except Exception:  # the library has many words for a file that is no such thing
            yield InvalidArgument("Tls", argument, f"hold {what} in PEM format", str(path))
    if "key" in files and os.name == "posix" and (mode := key.stat().st_mode & 0o777) & 0o077:
        found = Verbatim(f"{str(key)!r} with mode {mode:03o}")
        yield InvalidArgument("Tls", "key", "be readable by its owner alone", found, remedy=f"chmod 600 {key}")
    trusted: list[x509.Certificate] = files.get("authority", [])
    for one in trusted:
        yield from _out_of_time("authority", one)
        if not _is_authority(one):
            found = Verbatim(f"one of {_common_name(one)!r} that may not")
            yield InvalidArgument("Tls", "authority", "be a certificate that may sign others", found)
    leaf: x509.Certificate | None = files.get("certificate")
    if leaf is None:
        return
    yield from _out_of_time("certificate", leaf)
    if name is not None and (common := _common_name(leaf)) != name:
        rule, remedy = f"be of the agent itself (common name {name!r})", "issue one with the agent's name"
        yield InvalidArgument("Tls", "certificate", rule, common, remedy=remedy)
    if trusted and not any(_signed(leaf, one) for one in trusted):
        found = Verbatim(f"one signed by {_common_name(leaf, issuer=True)!r} with another key")
        yield InvalidArgument("Tls", "certificate", f"be signed by the authority in {authority}", found)
    if "key" in files and files["key"].public_key() != leaf.public_key():
        yield InvalidArgument("Tls", "key", "be the key of the certificate", Verbatim(f"another one in {str(key)!r}"))


def _out_of_time(argument: str, certificate: x509.Certificate) -> Iterator[ValueError]:
    now = datetime.datetime.now(datetime.UTC)
    since, until = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not since <= now <= until:
        found = Verbatim(f"one that is valid from {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC")
        yield InvalidArgument("Tls", argument, "be valid now", found, remedy="issue a new one, or set the clock")


def _is_authority(certificate: x509.Certificate) -> bool:
    from cryptography import x509

    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        return False


def _common_name(certificate: x509.Certificate, *, issuer: bool = False) -> str:
    from cryptography import x509

    try:
        of = certificate.issuer if issuer else certificate.subject
        names = of.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    except ValueError:
        names = []
    return str(names[0].value) if names else ""


def _signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, UnsupportedAlgorithm, TypeError, ValueError):
        return False
    return True
