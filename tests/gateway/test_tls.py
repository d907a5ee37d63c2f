import pytest

from gateway.binding import StartError
from gateway.tls import Tls
from tests.certificates import certificate


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return certificate(tmp_path_factory.mktemp("pair"), "one")


@pytest.fixture
def files(pair, tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_bytes(pair[0].read_bytes())
    key.write_bytes(pair[1].read_bytes())
    key.chmod(0o600)
    return cert, key


def refusal(cert, key):
    with pytest.raises(StartError) as raised:
        Tls(cert, key)
    return str(raised.value)


def test_a_pair_is_taken_and_known_by_its_fingerprint(files):
    assert len(Tls(*files).fingerprint) == 64


def test_a_file_that_is_missing_is_named(files, tmp_path):
    cert, key = files
    assert "tls_cert" in refusal(tmp_path / "none", key)
    assert "name the certificate's key there" in refusal(cert, tmp_path / "none")


def test_files_without_pem_are_named(files, tmp_path):
    cert, key = files
    nonsense = tmp_path / "nonsense"
    nonsense.write_text("nonsense")
    nonsense.chmod(0o600)
    assert "no certificate in PEM form" in refusal(nonsense, key)
    assert "both have to be in PEM form" in refusal(cert, nonsense)
    nonsense.write_text("-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n")
    assert "damaged" in refusal(nonsense, key)


def test_a_key_of_another_certificate_is_refused(files, tmp_path):
    _cert, other_key = certificate(tmp_path, "two")
    assert "is not the key of the certificate" in refusal(files[0], other_key)


def test_a_key_that_needs_a_password_is_refused_rather_than_asked_for(tmp_path):
    assert "needs a password" in refusal(*certificate(tmp_path, "locked", password="secret"))


def test_a_key_that_others_may_read_is_refused(files):
    files[1].chmod(0o640)
    assert "chmod 600" in refusal(*files)


def test_a_renewed_pair_is_taken_and_half_a_one_is_not(files, tmp_path):
    tls = Tls(*files)
    before, context = tls.fingerprint, tls.context
    assert not tls.was_renewed()
    cert, key = certificate(tmp_path, "new")
    cert.rename(files[0])
    with pytest.raises(StartError):
        tls.was_renewed()
    assert (tls.fingerprint, tls.context) == (before, context)
    assert not tls.was_renewed()
    key.rename(files[1])
    assert tls.was_renewed()
    assert tls.fingerprint != before
