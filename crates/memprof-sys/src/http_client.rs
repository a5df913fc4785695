//! What memprof's HTTP clients have in common: who is trusted over TLS, and the name that they give themselves.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use ureq::Agent;
use ureq::config::ConfigBuilder;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::typestate::AgentScope;

/// The certificates of authorities that a client trusts.
pub type Authorities = Vec<Certificate<'static>>;

/// The authorities of the system (or of `SSL_CERT_FILE`, `SSL_CERT_DIR`), if one of the URLs needs them: reading them takes
/// milliseconds.
pub fn authorities_for<'a>(urls: impl IntoIterator<Item = &'a str>) -> Authorities {
    if !urls.into_iter().any(|url| url.starts_with("https:")) {
        return Vec::new();
    }
    let roots = rustls_native_certs::load_native_certs().certs;
    let owned = roots
        .iter()
        .map(|der| Certificate::from_der(der).to_owned());
    owned.collect()
}

/// The certificates in a PEM file.
///
/// # Errors
/// The file cannot be read, or it contains no certificate.
pub fn authorities_in(path: &Path) -> Result<Authorities> {
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut found = Vec::new();
    for item in parse_pem(&text) {
        let item = item.with_context(|| format!("cannot read {} as PEM", path.display()))?;
        if let PemItem::Certificate(certificate) = item {
            found.push(certificate);
        }
    }
    if found.is_empty() {
        bail!("{} contains no certificate in PEM", path.display());
    }
    Ok(found)
}

/// Settings of a client that trusts these authorities. It takes a reply with any status for a reply, not for an error.
pub fn settings(authorities: Authorities) -> ConfigBuilder<AgentScope> {
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::Specific(Arc::new(authorities)))
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build();
    Agent::config_builder()
        .tls_config(tls)
        .user_agent(concat!("memprof/", env!("CARGO_PKG_VERSION")))
        .http_status_as_error(false)
}
