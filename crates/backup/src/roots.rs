//! Which authorities are believed when a store is spoken to over TLS: those of the machine, Mozilla's list (our image
//! and etcd's may carry none), and the file `ca.crt` of the store's secret for stores with a certificate of their own.

use std::path::Path;

use object_store::{Certificate, ClientOptions};

use crate::error::{Error, Reason};

/// Options for every HTTP client: who is believed, and how long to wait for a sign of life.
pub(crate) fn client(secrets: &Path) -> Result<ClientOptions, Error> {
    // reqwest has no TLS provider of its own here. Somebody else having installed one is just as well.
    let _already = rustls::crypto::ring::default_provider().install_default();
    let mut options = ClientOptions::new()
        .with_allow_http(true)
        .with_no_system_certificates(true)
        .with_connect_timeout(std::time::Duration::from_secs(5))
        // The time of a whole request is no measure for a stream; silence is.
        .with_timeout_disabled()
        .with_read_timeout(std::time::Duration::from_secs(30));
    let own = std::fs::read(secrets.join("ca.crt")).unwrap_or_default();
    if !own.is_empty() {
        let bundle = Certificate::from_pem_bundle(&own).map_err(|error| {
            Error::new(
                Reason::SecretInvalid,
                format!("the secret's ca.crt is no PEM file: {error}"),
            )
        })?;
        for certificate in bundle {
            options = options.with_root_certificate(certificate);
        }
    }
    let machine = rustls_native_certs::load_native_certs().certs;
    let ders = machine.iter().chain(webpki_root_certs::TLS_SERVER_ROOT_CERTS);
    for certificate in ders.filter_map(|der| Certificate::from_der(der).ok()) {
        options = options.with_root_certificate(certificate);
    }
    Ok(options)
}
