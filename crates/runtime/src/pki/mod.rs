//! Certificate authorities, and certificates that they sign. Certificates are renewed after two thirds of their life.
//!
//! Which Secrets hold them, and when, is the engines' to decide. When they are due is written on the Secrets as annotations.

pub mod pem;

use std::collections::BTreeMap;

use jiff::{Timestamp, ToSpan};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SanType,
};

/// Annotation: from then on it is to be renewed.
pub const RENEW_AFTER: &str = "stateward.dev/renew-after";
/// Annotation: what the certificate was asked to carry.
pub const CARRIES: &str = "stateward.dev/certificate-names";
/// Days for which an authority of our own is valid.
pub const AUTHORITY_DAYS: i64 = 3650;
/// Days for which a certificate is valid where the user says nothing.
pub const DEFAULT_VALIDITY_DAYS: i64 = 90;

type Annotations = BTreeMap<String, String>;

/// A certificate to have.
pub struct Wanted {
    /// The names that it carries: host names and IP addresses.
    pub names: Vec<String>,
    /// It is for servers, which may be clients too.
    pub server: bool,
    /// For how many days.
    pub days: i64,
}

/// A certificate that was made.
pub struct Signed {
    /// In PEM.
    pub certificate: String,
    /// Its private key, in PEM.
    pub key: String,
    /// What the Secret is annotated with.
    pub annotations: Annotations,
}

impl Wanted {
    /// Whether a certificate that is there is to be made anew.
    pub fn is_due(&self, annotations: Option<&Annotations>, now: Timestamp) -> bool {
        let text = |name: &str| annotations.and_then(|all| all.get(name)).map_or("", String::as_str);
        is_past(text(RENEW_AFTER), now) || text(CARRIES) != self.names.join(",")
    }
}

fn is_past(time: &str, now: Timestamp) -> bool {
    time.parse::<Timestamp>().map_or(true, |time| now >= time)
}

/// A new authority.
pub fn make_authority(name: &str, now: Timestamp) -> Result<Signed, rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name = common_name(name);
    live(&mut params, now, AUTHORITY_DAYS);
    Ok(Signed {
        certificate: params.self_signed(&key)?.pem(),
        key: key.serialize_pem(),
        annotations: BTreeMap::from([renew_after(now, AUTHORITY_DAYS)]),
    })
}

/// A certificate that an authority signs. It never outlives the authority.
pub fn sign(wanted: &Wanted, ca: &str, ca_key: &str, now: Timestamp) -> Result<Signed, rcgen::Error> {
    let issuer = Issuer::from_ca_cert_pem(ca, KeyPair::from_pem(ca_key)?)?;
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(Vec::new())?;
    for name in &wanted.names {
        params.subject_alt_names.push(match name.parse() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(name.as_str().try_into()?),
        });
    }
    params.distinguished_name = common_name(wanted.names.first().map_or("member", String::as_str));
    // Members are each other's clients.
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    if wanted.server {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let days = days_left(ca, now).map_or(wanted.days, |left| wanted.days.min(left));
    live(&mut params, now, days);
    Ok(Signed {
        certificate: params.signed_by(&key, &issuer)?.pem(),
        key: key.serialize_pem(),
        annotations: BTreeMap::from([renew_after(now, days), (CARRIES.to_owned(), wanted.names.join(","))]),
    })
}

fn renew_after(now: Timestamp, days: i64) -> (String, String) {
    let then = now.checked_add((days * 24 * 2 / 3).hours()).unwrap_or(now);
    (RENEW_AFTER.to_owned(), then.to_string())
}

/// Why nothing can be signed with an authority; `None`: it can. Whoever replaces a Secret key by key leaves a certificate with another's
/// key in between, and what such an authority signs nobody takes.
pub fn unfit(ca: &str, ca_key: &str, now: Timestamp) -> Option<String> {
    let Ok((_, pem)) = x509_parser::pem::parse_x509_pem(ca.as_bytes()) else {
        return Some("tls.crt holds no certificate in PEM".into());
    };
    let Ok(certificate) = pem.parse_x509() else {
        return Some("the certificate in tls.crt cannot be read".into());
    };
    let key = match KeyPair::from_pem(ca_key) {
        Ok(key) => key,
        Err(error) => return Some(format!("the key in tls.key cannot be used ({error})")),
    };
    if !certificate.is_ca() {
        return Some("the certificate in tls.crt is not one of a CA (basicConstraints CA:TRUE)".into());
    }
    if key.subject_public_key_info() != certificate.public_key().raw {
        return Some("tls.key is not the key of the certificate in tls.crt".into());
    }
    let ended = certificate.validity().not_after.timestamp() <= now.as_second();
    ended.then(|| {
        format!(
            "the certificate in tls.crt ended at {}",
            certificate.validity().not_after
        )
    })
}

/// For how many whole days an authority is still valid, at least one.
pub fn days_left(ca: &str, now: Timestamp) -> Option<i64> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(ca.as_bytes()).ok()?;
    let end = pem.parse_x509().ok()?.validity().not_after.timestamp();
    Some(((end - now.as_second()) / 86_400).max(1))
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    // at most 64 characters by X.509
    distinguished.push(DnType::CommonName, name.chars().take(64).collect::<String>());
    distinguished
}

/// Valid from yesterday, since clocks differ, until midnight of the day that is so many days from now.
fn live(params: &mut CertificateParams, now: Timestamp, days: i64) {
    let day = |days: i64| {
        let then = now.checked_add((days * 24).hours()).unwrap_or(now);
        let date = then.to_zoned(jiff::tz::TimeZone::UTC).date();
        let unsigned = |number: i8| u8::try_from(number).unwrap_or(1);
        rcgen::date_time_ymd(i32::from(date.year()), unsigned(date.month()), unsigned(date.day()))
    };
    params.not_before = day(-1);
    params.not_after = day(days);
}
