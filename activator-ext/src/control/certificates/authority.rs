//! Authorities, and the pairs of certificate and key under them, as PEM.

use std::sync::Arc;

use policy::certificates::Validity;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData as _,
};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use time::OffsetDateTime;
use x509_parser::prelude::FromDer as _;

/// Number of seconds by which a certificate's validity begins before its creation, for clocks that are behind.
const SKEW_SECS: i64 = 300;

/// A certificate and its key.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    /// The certificate as PEM.
    pub(crate) certificate: String,
    /// The private key of the certificate as PEM, in PKCS #8.
    pub(crate) key: String,
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

/// The reason why a certificate could not be created.
#[derive(Debug, thiserror::Error)]
#[error("cannot create a certificate: {0}")]
pub(crate) struct MakeError(#[from] rcgen::Error);

fn parameters(name: &str, begin: i64, end: i64) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    parameters.distinguished_name = subject;
    let time =
        |second| OffsetDateTime::from_unix_timestamp(second).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    parameters.not_before = time(begin);
    parameters.not_after = time(end);
    parameters
}

fn issuing() -> CertificateParams {
    let mut parameters = parameters("weir", 0, 0);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    parameters
}

/// Returns a new authority, valid for `life` seconds from the second `now`.
///
/// # Errors
///
/// Fails if no key can be generated.
pub(crate) fn authority(now: i64, life: i64) -> Result<Pair, MakeError> {
    let key = KeyPair::generate()?;
    let times = parameters("", now - SKEW_SECS, now.saturating_add(life));
    let mut parameters = issuing();
    parameters.not_before = times.not_before;
    parameters.not_after = times.not_after;
    Ok(Pair {
        certificate: parameters.self_signed(&key)?.pem(),
        key: key.serialize_pem(),
    })
}

/// Returns a new pair under an authority, for servers and clients of these DNS names. It is valid for `life` seconds
/// from the second `now`, but no longer than the authority.
///
/// # Errors
///
/// Fails if the authority's key cannot be used, or if no key can be generated.
pub(crate) fn pair(
    authority: &Pair,
    names: &[String],
    now: i64,
    life: i64,
) -> Result<Pair, MakeError> {
    let issuer = Issuer::new(issuing(), KeyPair::from_pem(&authority.key)?);
    let end = validity(&authority.certificate).map_or(i64::MAX, |it| it.end);
    let key = KeyPair::generate()?;
    let first = names.first().map_or("", String::as_str);
    let mut parameters = parameters(first, now - SKEW_SECS, now.saturating_add(life).min(end));
    parameters.subject_alt_names = CertificateParams::new(names)?.subject_alt_names;
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    parameters.use_authority_key_identifier_extension = true;
    Ok(Pair {
        certificate: parameters.signed_by(&key, &issuer)?.pem(),
        key: key.serialize_pem(),
    })
}

/// Returns the validity of the first certificate of a PEM; `None` if it cannot be parsed.
pub(crate) fn validity(pem: &str) -> Option<Validity> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
    let (_, certificate) = x509_parser::certificate::X509Certificate::from_der(&der).ok()?;
    let validity = certificate.validity();
    Some(Validity {
        begin: validity.not_before.timestamp(),
        end: validity.not_after.timestamp(),
    })
}

/// Returns the validity of an authority; `None` if its certificate cannot be parsed, is none of an authority, or does
/// not match the key.
pub(crate) fn usable_authority(pair: &Pair) -> Option<Validity> {
    let der = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).ok()?;
    let (_, certificate) = x509_parser::certificate::X509Certificate::from_der(&der).ok()?;
    let key = KeyPair::from_pem(&pair.key).ok()?;
    let is_its = certificate.public_key().raw == key.subject_public_key_info();
    if is_its && certificate.is_ca() {
        validity(&pair.certificate)
    } else {
        None
    }
}

/// Returns whether a pair can be used at the second `now` and for some time: it is not due for renewal, its key
/// matches, and a client that trusts `bundle` accepts it for each of `names`.
pub(crate) fn is_usable(pair: &Pair, bundle: &str, names: &[String], now: i64) -> bool {
    let is_due = validity(&pair.certificate).is_none_or(|validity| validity.is_due(now));
    !is_due && verify(pair, bundle, names, now).is_some()
}

fn verify(pair: &Pair, bundle: &str, names: &[String], now: i64) -> Option<()> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let der = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).ok()?;
    let key = KeyPair::from_pem(&pair.key).ok()?;
    let (_, certificate) = x509_parser::certificate::X509Certificate::from_der(&der).ok()?;
    if certificate.public_key().raw != key.subject_public_key_info() {
        return None;
    }
    let mut roots = RootCertStore::empty();
    let authorities = CertificateDer::pem_slice_iter(bundle.as_bytes());
    roots.add_parsable_certificates(authorities.filter_map(Result::ok));
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
    let verifier = verifier.build().ok()?;
    let now = std::time::Duration::from_secs(u64::try_from(now).ok()?);
    for name in names {
        let name = ServerName::try_from(name.as_str()).ok()?;
        let now = UnixTime::since_unix_epoch(now);
        verifier
            .verify_server_cert(&der, &[], &name, &[], now)
            .ok()?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn names() -> Vec<String> {
        vec!["weir-webhook.weir-system.svc".to_owned()]
    }

    #[test]
    fn a_pair_is_accepted_by_clients_that_trust_its_authority() {
        let own = authority(NOW, 90_000).unwrap();
        let other = authority(NOW, 90_000).unwrap();
        let signed = pair(&own, &names(), NOW, 9_000).unwrap();
        let both = format!("{}{}", other.certificate, own.certificate);
        assert!(is_usable(&signed, &own.certificate, &names(), NOW));
        assert!(is_usable(&signed, &both, &names(), NOW));
        assert!(!is_usable(&signed, &other.certificate, &names(), NOW));
        let elsewhere = ["other.svc".to_owned()];
        assert!(!is_usable(&signed, &own.certificate, &elsewhere, NOW));
    }

    #[test]
    fn a_pair_is_replaced_at_two_thirds_of_its_life_and_ends_with_its_authority() {
        let own = authority(NOW, 5_000).unwrap();
        let signed = pair(&own, &names(), NOW, 9_000).unwrap();
        let validity = validity(&signed.certificate).unwrap();
        assert_eq!((validity.begin, validity.end), (NOW - 300, NOW + 5_000));
        let usable = |now| is_usable(&signed, &own.certificate, &names(), now);
        assert!(usable(validity.renewal() - 1));
        assert!(!usable(validity.renewal()));
    }

    #[test]
    fn a_key_of_another_certificate_is_not_used() {
        let own = authority(NOW, 90_000).unwrap();
        let other = authority(NOW, 90_000).unwrap();
        assert!(usable_authority(&own).is_some());
        let mixed = Pair {
            key: other.key,
            ..own.clone()
        };
        assert_eq!(usable_authority(&mixed), None);
        let signed = pair(&own, &names(), NOW, 9_000).unwrap();
        assert_eq!(usable_authority(&signed), None, "not an authority");
        let torn = Pair {
            certificate: signed.certificate.clone(),
            key: own.key.clone(),
        };
        assert!(!is_usable(&torn, &own.certificate, &names(), NOW));
    }
}
