//! Service account tokens: JSON Web Tokens that only this instance signs and verifies.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::User;
use crate::api::meta;
use crate::api::store::{Key, Store};

/// The issuer and default audience, as in a real cluster.
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// The claims of a token.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Claims {
    pub(crate) aud: Vec<String>,
    pub(crate) exp: i64,
    pub(crate) iat: i64,
    pub(crate) iss: String,
    pub(crate) nbf: i64,
    pub(crate) sub: String,
    pub(crate) jti: String,
    #[serde(rename = "kubernetes.io")]
    pub(crate) kubernetes: Value,
}

fn part(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

pub(crate) fn sign(key: &[u8], claims: &Claims) -> String {
    let signed = format!(
        "{}.{}",
        part(&json!({"alg": "HS256", "typ": "JWT"})),
        part(&json!(claims))
    );
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag.as_ref()))
}

/// The claims of a token with a valid signature that has not expired.
fn verify(key: &[u8], token: &str) -> Option<Claims> {
    let (signed, tag) = token.rsplit_once('.')?;
    let tag = URL_SAFE_NO_PAD.decode(tag).ok()?;
    hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, key), signed.as_bytes(), &tag).ok()?;
    let (_, claims) = signed.split_once('.')?;
    let claims: Claims = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
    let now = jiff::Timestamp::now().as_second();
    (claims.iss == ISSUER && claims.nbf <= now + 60 && now < claims.exp).then_some(claims)
}

/// The service account of a token, if it and the object that the token is bound to still exist.
pub(crate) fn user(key: &[u8], store: &Store, token: &str) -> Option<(User, Claims)> {
    let claims = verify(key, token)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let about = &claims.kubernetes;
    let namespace = text(&about["namespace"]);
    let name = text(&about["serviceaccount"]["name"]);
    let account = store.get(&Key::new("serviceaccounts", &namespace, &name))?;
    if meta::uid(&account.value) != text(&about["serviceaccount"]["uid"]) {
        return None;
    }
    let mut extra = serde_json::Map::new();
    extra.insert(
        "authentication.kubernetes.io/credential-id".into(),
        json!([format!("JTI={}", claims.jti)]),
    );
    if about["pod"].is_object() {
        let pod = store.get(&Key::new("pods", &namespace, &text(&about["pod"]["name"])))?;
        if meta::uid(&pod.value) != text(&about["pod"]["uid"]) {
            return None;
        }
        extra.insert(
            "authentication.kubernetes.io/pod-name".into(),
            json!([about["pod"]["name"]]),
        );
        extra.insert(
            "authentication.kubernetes.io/pod-uid".into(),
            json!([about["pod"]["uid"]]),
        );
    }
    let mut user = User::service_account(&namespace, &name);
    user.uid = meta::uid(&account.value).to_owned();
    user.extra = extra;
    Some((user, claims))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(lifetime: i64) -> Claims {
        let now = jiff::Timestamp::now().as_second();
        Claims {
            aud: vec![ISSUER.into()],
            exp: now + lifetime,
            iat: now,
            iss: ISSUER.into(),
            nbf: now,
            sub: "system:serviceaccount:default:default".into(),
            jti: "x".into(),
            kubernetes: json!({}),
        }
    }

    #[test]
    fn only_own_and_valid_tokens_are_believed() {
        let token = sign(b"key", &claims(60));
        assert!(verify(b"key", &token).is_some());
        assert!(verify(b"other", &token).is_none());
        assert!(verify(b"key", &sign(b"key", &claims(-1))).is_none());
        let mut forged: Vec<&str> = token.split('.').collect();
        let other = part(&json!(claims(6000)));
        forged[1] = &other;
        assert!(verify(b"key", &forged.join(".")).is_none());
        for nonsense in ["", ".", "..", "a.b.c", "é.é.é"] {
            assert!(verify(b"key", nonsense).is_none());
        }
    }
}
