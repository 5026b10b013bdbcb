//! Why a handshake failed, in one short sentence that does not change from one try to the next: it reaches the status, and
//! rustls names the seconds that have passed since a certificate expired.

use rustls::{AlertDescription, CertificateError, Error};

/// How many of a certificate's names are told.
const NAMES: usize = 3;

/// The reason of a failed handshake.
pub(crate) fn reason(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(why) => format!("the member's certificate {}", of_certificate(why)),
        Error::AlertReceived(alert) => match alert {
            AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::CertificateExpired
            | AlertDescription::UnsupportedCertificate => {
                format!("the member does not accept our client certificate ({alert:?})")
            }
            other => format!("the member ended it ({other:?})"),
        },
        Error::InvalidMessage(_) => "the member does not speak TLS".to_owned(),
        other => other.to_string(),
    }
}

fn of_certificate(why: &CertificateError) -> String {
    match why {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "has expired".to_owned(),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => "is not valid yet".to_owned(),
        CertificateError::UnknownIssuer => "is not signed by the configured CA".to_owned(),
        CertificateError::BadSignature => "has a signature that is not of the configured CA".to_owned(),
        CertificateError::NotValidForName => "is for another name".to_owned(),
        CertificateError::NotValidForNameContext { expected, presented } => {
            let names = presented.iter().take(NAMES).cloned().collect::<Vec<_>>().join(", ");
            let more = if presented.len() > NAMES { ", …" } else { "" };
            let has = if names.is_empty() {
                "none".to_owned()
            } else {
                format!("{names}{more}")
            };
            format!("is not for the name {}: it has {has}", expected.to_str())
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "is not for servers: its extended key usage lacks serverAuth".to_owned()
        }
        CertificateError::BadEncoding => "cannot be read".to_owned(),
        other => format!("cannot be verified: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use rustls_pki_types::{ServerName, UnixTime};

    use super::*;

    fn said(error: Error) -> String {
        reason(&error)
    }

    #[test]
    fn the_reason_is_short_and_stays_the_same() {
        let expired = |now| CertificateError::ExpiredContext {
            time: UnixTime::since_unix_epoch(std::time::Duration::from_secs(now)),
            not_after: UnixTime::since_unix_epoch(std::time::Duration::from_secs(1)),
        };
        assert_eq!(said(expired(10).into()), said(expired(11).into()));
        assert!(said(expired(10).into()).ends_with("the member's certificate has expired"));
        let presented = (0..50).map(|number| format!("DnsName(\"host-{number}\")")).collect();
        let expected = ServerName::try_from("m1.c.ns.svc").expect("a name");
        let name = said(CertificateError::NotValidForNameContext { expected, presented }.into());
        assert!(
            name.contains("m1.c.ns.svc") && name.contains("host-0") && name.len() < 160,
            "{name}"
        );
        assert!(said(Error::AlertReceived(AlertDescription::BadCertificate)).contains("client certificate"));
    }
}
