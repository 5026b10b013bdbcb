//! How a member's certificate is verified: as webpki does it, and in one case as Go does.
//!
//! Users of the old operator have self-signed certificates that are CA and server certificate in one (`CA:TRUE`). etcd itself
//! accepts them: Go's `x509.Certificate.Verify` does not ask whether a leaf may sign. webpki refuses every leaf with
//! `CA:TRUE` (`CaUsedAsEndEntity`). For those alone there is a second way, and nothing else is weakened:
//!
//! | check | by |
//! | --- | --- |
//! | encoding, unknown critical extensions, inner and outer signature algorithm | webpki, when it parses the certificate |
//! | it is one of the configured CA certificates, or one of them signed it | here |
//! | validity dates | here |
//! | purpose: extended key usage has `serverAuth`, or is absent | here |
//! | name | webpki (`verify_server_name`) |
//! | signature of the handshake | webpki, by the cryptographic provider |
//!
//! Neither Go nor webpki asks for `digitalSignature` in the key usage of a server certificate; nor is it asked for here.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{VerifierBuilderError, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::oid_registry::{OID_PKCS1_SHA1WITHRSA, OID_SHA1_WITH_RSA};
use x509_parser::parse_x509_certificate;
use x509_parser::time::ASN1Time;

/// Verifies members' certificates.
#[derive(Debug)]
pub(crate) struct Verifier {
    webpki: Arc<WebPkiServerVerifier>,
    roots: Vec<CertificateDer<'static>>,
}

impl Verifier {
    /// One that trusts these CA certificates, which `store` holds, too.
    pub(crate) fn new(
        roots: Vec<CertificateDer<'static>>,
        store: RootCertStore,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, VerifierBuilderError> {
        let webpki = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider).build()?;
        Ok(Self { webpki, roots })
    }

    /// The second way, for a server certificate with `CA:TRUE`.
    fn verify_ca(
        &self,
        der: &CertificateDer<'_>,
        certificate: &X509Certificate<'_>,
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), CertificateError> {
        if !self.is_vouched_for(der, certificate) {
            return Err(CertificateError::UnknownIssuer);
        }
        let now = i64::try_from(now.as_secs())
            .ok()
            .and_then(|seconds| ASN1Time::from_timestamp(seconds).ok())
            .ok_or(CertificateError::BadEncoding)?;
        if now < certificate.validity().not_before {
            return Err(CertificateError::NotValidYet);
        }
        if now > certificate.validity().not_after {
            return Err(CertificateError::Expired);
        }
        match certificate.extended_key_usage() {
            Ok(None) => {}
            Ok(Some(usage)) if usage.value.server_auth => {}
            Ok(Some(_)) => return Err(CertificateError::InvalidPurpose),
            Err(_) => return Err(CertificateError::BadEncoding),
        }
        let parsed = ParsedCertificate::try_from(der).map_err(|_| CertificateError::BadEncoding)?;
        verify_server_name(&parsed, name).map_err(|error| match error {
            Error::InvalidCertificate(why) => why,
            _ => CertificateError::NotValidForName,
        })
    }

    /// Whether a configured CA certificate is this one, or signed it. Longer chains to a certificate with `CA:TRUE` are not
    /// followed, and a CA with name constraints is left to webpki.
    fn is_vouched_for(&self, der: &CertificateDer<'_>, certificate: &X509Certificate<'_>) -> bool {
        // webpki refuses SHA-1 and so does Go; x509-parser does not.
        let outdated = [OID_PKCS1_SHA1WITHRSA, OID_SHA1_WITH_RSA].contains(&certificate.signature_algorithm.algorithm);
        self.roots.iter().any(|root| {
            let Ok((_, ca)) = parse_x509_certificate(root) else {
                return false;
            };
            if !matches!(ca.name_constraints(), Ok(None)) {
                return false;
            }
            let signed = || {
                ca.is_ca()
                    && !outdated
                    && ca.subject().as_raw() == certificate.issuer().as_raw()
                    && certificate.verify_signature(Some(ca.public_key())).is_ok()
            };
            root.as_ref() == der.as_ref() || signed()
        })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let ordinary = self
            .webpki
            .verify_server_cert(certificate, intermediates, name, ocsp, now);
        // `CaUsedAsEndEntity` has no variant of its own in rustls.
        let Err(Error::InvalidCertificate(CertificateError::Other(_))) = &ordinary else {
            return ordinary;
        };
        match parse_x509_certificate(certificate) {
            Ok((rest, parsed)) if rest.is_empty() && parsed.is_ca() => self
                .verify_ca(certificate, &parsed, name, now)
                .map(|()| ServerCertVerified::assertion())
                .map_err(Error::InvalidCertificate),
            _ => ordinary,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

    use super::*;

    const NAME: &str = "m1.c.ns.svc";

    /// A certificate that is CA and server certificate in one, before a test spoils it.
    fn params() -> CertificateParams {
        let mut params = CertificateParams::new(vec![NAME.to_owned()]).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "etcd of old");
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2040, 1, 1);
        params
    }

    fn self_signed(params: &CertificateParams) -> CertificateDer<'static> {
        let key = KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("a certificate").der().clone()
    }

    /// Another CA, and a certificate that it signed.
    fn signed_by_another(params: &CertificateParams) -> (CertificateDer<'static>, CertificateDer<'static>) {
        let mut ca = CertificateParams::new(Vec::new()).expect("parameters");
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.distinguished_name.push(DnType::CommonName, "the CA");
        let ca_key = KeyPair::generate().expect("a key");
        let root = ca.self_signed(&ca_key).expect("a CA").der().clone();
        let key = KeyPair::generate().expect("a key");
        let leaf = params.signed_by(&key, &Issuer::new(ca, ca_key)).expect("a certificate");
        (root, leaf.der().clone())
    }

    /// What is said of a certificate in the year 2030.
    fn verify(roots: &[&CertificateDer<'static>], certificate: &CertificateDer<'_>) -> Result<(), CertificateError> {
        let mut store = RootCertStore::empty();
        for root in roots {
            store.add((*root).clone()).expect("a root");
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let roots = roots.iter().map(|root| (*root).clone()).collect();
        let verifier = Verifier::new(roots, store, provider).expect("a verifier");
        let now = UnixTime::since_unix_epoch(Duration::from_secs(1_893_456_000));
        let name = ServerName::try_from(NAME).expect("a name");
        match verifier.verify_server_cert(certificate, &[], &name, &[], now) {
            Ok(_) => Ok(()),
            Err(Error::InvalidCertificate(why)) => Err(why),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn a_certificate_that_is_its_own_ca_is_accepted_as_go_does() {
        let mut with_purpose = params();
        with_purpose.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        for params in [params(), with_purpose] {
            let certificate = self_signed(&params);
            assert_eq!(verify(&[&self_signed(&params), &certificate], &certificate), Ok(()));
        }
        // One that a configured CA signed, too.
        let (root, leaf) = signed_by_another(&params());
        assert_eq!(verify(&[&root], &leaf), Ok(()));
    }

    #[test]
    fn all_else_is_checked_as_before() {
        let refused = |params: &CertificateParams| {
            let certificate = self_signed(params);
            verify(&[&certificate], &certificate).expect_err("refused")
        };
        let mut other_name = params();
        other_name.subject_alt_names = CertificateParams::new(vec!["m2.c.ns.svc".to_owned()])
            .expect("parameters")
            .subject_alt_names;
        assert!(matches!(
            refused(&other_name),
            CertificateError::NotValidForNameContext { .. }
        ));
        let mut nameless = params();
        nameless.subject_alt_names.clear();
        nameless.distinguished_name.push(DnType::CommonName, NAME);
        assert!(matches!(
            refused(&nameless),
            CertificateError::NotValidForNameContext { .. }
        ));
        let mut expired = params();
        expired.not_after = rcgen::date_time_ymd(2029, 1, 1);
        assert!(matches!(refused(&expired), CertificateError::ExpiredContext { .. }));
        let mut early = params();
        early.not_before = rcgen::date_time_ymd(2031, 1, 1);
        assert!(matches!(refused(&early), CertificateError::NotValidYetContext { .. }));
        let mut for_clients = params();
        for_clients.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        assert_eq!(refused(&for_clients), CertificateError::InvalidPurpose);
    }

    #[test]
    fn nobody_vouches_for_a_stranger() {
        // Given one of the same names whose key is another's,
        let (trusted, stranger) = (self_signed(&params()), self_signed(&params()));
        assert_eq!(verify(&[&trusted], &stranger), Err(CertificateError::UnknownIssuer));
        // one that an unknown CA signed,
        let (_, leaf) = signed_by_another(&params());
        assert_eq!(verify(&[&trusted], &leaf), Err(CertificateError::UnknownIssuer));
        // and one whose CA has the right name and another key: none is accepted.
        let (root, _) = signed_by_another(&params());
        assert_eq!(verify(&[&root], &leaf), Err(CertificateError::UnknownIssuer));
        // A certificate that may not sign vouches for nobody but itself.
        let mut plain = params();
        plain.is_ca = IsCa::NoCa;
        let key = KeyPair::generate().expect("a key");
        let root = plain.self_signed(&key).expect("a certificate").der().clone();
        let own = KeyPair::generate().expect("a key");
        let leaf = params()
            .signed_by(&own, &Issuer::new(plain, key))
            .expect("a certificate");
        assert_eq!(verify(&[&root], leaf.der()), Err(CertificateError::UnknownIssuer));
        assert_eq!(verify(&[&root], &root), Ok(()));
    }

    /// The second way does not lean on what webpki looked at before it refused.
    #[test]
    fn the_second_way_checks_validity_by_itself() {
        let mut expired = params();
        expired.not_after = rcgen::date_time_ymd(2021, 1, 1);
        let der = self_signed(&expired);
        let (_, parsed) = parse_x509_certificate(&der).expect("a certificate");
        let mut store = RootCertStore::empty();
        store.add(der.clone()).expect("a root");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = Verifier::new(vec![der.clone()], store, provider).expect("a verifier");
        let name = ServerName::try_from(NAME).expect("a name");
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let verify = |seconds| verifier.verify_ca(&der, &parsed, &name, at(seconds));
        assert_eq!(verify(1_893_456_000), Err(CertificateError::Expired));
        assert_eq!(verify(1_000_000_000), Err(CertificateError::NotValidYet));
        assert_eq!(verify(1_600_000_000), Ok(()));
    }
}
