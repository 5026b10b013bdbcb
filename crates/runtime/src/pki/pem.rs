//! Certificates as text: a CA file may hold several, and each has a name of its own.

use std::collections::BTreeMap;

use jiff::Timestamp;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use stateward_core::manifests::fingerprint;

const END: &str = "-----END CERTIFICATE-----";

/// Certificates by their fingerprints.
pub type Bundle = BTreeMap<String, String>;

/// The certificates of a CA file. What cannot be read is left out: nobody could be verified with it.
pub fn bundle(text: &[u8]) -> Bundle {
    let text = String::from_utf8_lossy(text);
    text.split_inclusive(END)
        .filter_map(|block| {
            let begin = block.find("-----BEGIN CERTIFICATE-----")?;
            let block = block[begin..].trim();
            Some((certificate_name(block.as_bytes())?, format!("{block}\n")))
        })
        .collect()
}

/// The name of the first certificate of a file.
pub fn certificate_name(text: &[u8]) -> Option<String> {
    let first = CertificateDer::pem_slice_iter(text).next()?.ok()?;
    Some(fingerprint(&first))
}

/// When the first of a file's certificates ends.
pub fn first_end(text: &[u8]) -> Option<Timestamp> {
    CertificateDer::pem_slice_iter(text)
        .flatten()
        .filter_map(|der| {
            let (_, certificate) = x509_parser::parse_x509_certificate(&der).ok()?;
            Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
        })
        .min()
}

/// A bundle as a file.
pub fn file(bundle: &Bundle) -> String {
    bundle.values().map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(name: &str) -> String {
        rcgen::generate_simple_self_signed([name.to_owned()])
            .expect("a certificate")
            .cert
            .pem()
    }

    #[test]
    fn a_file_of_two_is_two_and_comes_back_as_the_same_two() {
        let (one, two) = (certificate("one"), certificate("two"));
        let both = bundle(format!("# mine\n{one}\r\n{two}").as_bytes());
        assert_eq!(both.len(), 2);
        assert_eq!(bundle(file(&both).as_bytes()), both);
        assert!(both.contains_key(&certificate_name(two.as_bytes()).expect("a name")));
        assert!(bundle(b"nothing here").is_empty());
    }

    #[test]
    fn a_file_ends_with_the_first_of_its_certificates() {
        let ending = |year: i32| {
            let mut params = rcgen::CertificateParams::new(["one".to_owned()]).expect("parameters");
            params.not_after = rcgen::date_time_ymd(year, 2, 3);
            let key = rcgen::KeyPair::generate().expect("a key");
            params.self_signed(&key).expect("a certificate").pem()
        };
        let both = format!("{}{}", ending(2040), ending(2030));
        assert_eq!(first_end(both.as_bytes()), "2030-02-03T00:00:00Z".parse().ok());
        assert_eq!(first_end(b"nothing here"), None);
    }
}
