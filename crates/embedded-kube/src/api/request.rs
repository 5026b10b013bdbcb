//! The parts of a request: path, verb and query, as Kubernetes reads them.

use std::collections::HashMap;

use http::Method;

use super::errors::{Result, Status};

/// A parsed request line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RequestInfo {
    pub(crate) path: String,
    /// Kubernetes' verb: get, list, watch, create, update, patch, delete, deletecollection.
    pub(crate) verb: &'static str,
    /// Present on resource requests.
    pub(crate) resource: Option<ResourcePath>,
    pub(crate) query: Query,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct ResourcePath {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) plural: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) subresource: String,
}

/// Decoded query parameters; repeated ones keep their order.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Query(HashMap<String, Vec<String>>);

impl Query {
    fn parse(query: &str) -> Self {
        let mut map: HashMap<String, Vec<String>> = HashMap::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            map.entry(decode(name, true)).or_default().push(decode(value, true));
        }
        Self(map)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .get(name)
            .and_then(|values| values.first())
            .map(String::as_str)
            .filter(|v| !v.is_empty())
    }

    pub(crate) fn all(&self, name: &str) -> &[String] {
        self.0.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        // Kubernetes reads a bare `?watch` as true.
        match self.0.get(name).and_then(|values| values.first()).map(String::as_str) {
            None => false,
            Some("" | "1" | "true" | "True" | "TRUE" | "t" | "T") => true,
            Some(_) => false,
        }
    }

    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>> {
        match self.get(name) {
            None => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| {
                Status::bad_request(format!(
                    "invalid query parameter {name:?}: strconv.ParseInt: parsing {text:?}: invalid syntax"
                ))
            }),
        }
    }
}

/// Percent-decodes; `+` means a space only inside a query.
fn decode(text: &str, plus: bool) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let hex = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
        match bytes[i] {
            b'%' if i + 2 < bytes.len() => match (hex(bytes[i + 1]), hex(bytes[i + 2])) {
                (Some(high), Some(low)) => {
                    out.push(high << 4 | low);
                    i += 2;
                }
                _ => out.push(b'%'),
            },
            b'+' if plus => out.push(b' '),
            byte => out.push(byte),
        }
        i += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

impl RequestInfo {
    pub(crate) fn parse(method: &Method, uri: &http::Uri) -> Result<Self> {
        let query = Query::parse(uri.query().unwrap_or_default());
        let path = uri.path().to_owned();
        let resource = resource_path(&path)?;
        let named = resource.as_ref().is_some_and(|r| !r.name.is_empty());
        let watch = query.flag("watch");
        let verb = match *method {
            Method::GET | Method::HEAD if resource.is_none() || named && !watch => "get",
            Method::GET | Method::HEAD if watch => "watch",
            Method::GET | Method::HEAD => "list",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if named || resource.is_none() => "delete",
            Method::DELETE => "deletecollection",
            _ => return Err(Status::method_not_allowed()),
        };
        let mut info = Self {
            path,
            verb,
            resource,
            query,
        };
        // `?fieldSelector=metadata.name=x` on a list counts as naming that object, for RBAC's resourceNames.
        if let Some(resource) = info.resource.as_mut()
            && matches!(verb, "list" | "watch" | "deletecollection")
            && resource.name.is_empty()
            && let Some(name) = info
                .query
                .get("fieldSelector")
                .and_then(|s| s.strip_prefix("metadata.name="))
            && !name.contains(',')
        {
            resource.name = name.to_owned();
        }
        Ok(info)
    }
}

/// Splits `/api/v1/...` and `/apis/GROUP/VERSION/...`; other paths are no resource paths.
fn resource_path(path: &str) -> Result<Option<ResourcePath>> {
    let mut parts: Vec<String> = path
        .split('/')
        .filter(|p| !p.is_empty())
        .map(|p| decode(p, false))
        .collect();
    if parts
        .iter()
        .any(|part| part.contains('/') || part.contains('\0') || part == "." || part == "..")
    {
        return Err(Status::bad_request(
            "the request path holds a name that no object can have",
        ));
    }
    let skip = match parts.first().map(String::as_str) {
        Some("api") => 2,
        Some("apis") => 3,
        _ => return Ok(None),
    };
    if parts.len() <= skip {
        return Ok(None);
    }
    let rest = parts.split_off(skip);
    let (group, version) = match parts.as_slice() {
        [_, version] => (String::new(), version.clone()),
        [_, group, version] => (group.clone(), version.clone()),
        _ => return Ok(None),
    };
    let mut found = ResourcePath {
        group,
        version,
        ..ResourcePath::default()
    };
    let mut rest = rest.as_slice();
    // The old form `/api/v1/watch/...` is not served; `namespaces/X/RESOURCE` is a namespace prefix, except for the
    // subresources of a namespace itself.
    if let [first, namespace, third, ..] = rest
        && first == "namespaces"
        && !(found.group.is_empty() && (third == "status" || third == "finalize") && rest.len() == 3)
    {
        found.namespace = namespace.clone();
        rest = &rest[2..];
    }
    let mut rest = rest.iter().cloned();
    found.plural = rest.next().unwrap_or_default();
    found.name = rest.next().unwrap_or_default();
    found.subresource = rest.collect::<Vec<_>>().join("/");
    if found.plural == "namespaces" && found.group.is_empty() && !found.name.is_empty() {
        // As in Kubernetes: a request on a namespace is also a request in it, which RBAC checks.
        found.namespace = found.name.clone();
    }
    Ok(Some(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(method: &str, uri: &str) -> RequestInfo {
        RequestInfo::parse(&method.parse().unwrap(), &uri.parse().unwrap()).unwrap()
    }

    #[test]
    fn paths_are_read_as_kubernetes_reads_them() {
        let at = |method: &str, uri: &str| {
            let info = parse(method, uri);
            let r = info.resource.unwrap_or_default();
            (
                info.verb,
                r.group,
                r.version,
                r.namespace,
                r.plural,
                r.name,
                r.subresource,
            )
        };
        let want = |v: &'static str, parts: [&str; 6]| {
            let [g, ver, ns, plural, name, sub] = parts.map(str::to_owned);
            (v, g, ver, ns, plural, name, sub)
        };
        assert_eq!(at("GET", "/api/v1/pods"), want("list", ["", "v1", "", "pods", "", ""]));
        assert_eq!(
            at("GET", "/api/v1/namespaces/a/pods?watch=1"),
            want("watch", ["", "v1", "a", "pods", "", ""])
        );
        assert_eq!(
            at("POST", "/api/v1/namespaces/a/pods/p/exec"),
            want("create", ["", "v1", "a", "pods", "p", "exec"])
        );
        assert_eq!(
            at("GET", "/api/v1/namespaces/a"),
            want("get", ["", "v1", "a", "namespaces", "a", ""])
        );
        assert_eq!(
            at("PUT", "/api/v1/namespaces/a/finalize"),
            want("update", ["", "v1", "a", "namespaces", "a", "finalize"])
        );
        assert_eq!(
            at("DELETE", "/apis/apps/v1/namespaces/a/statefulsets"),
            want("deletecollection", ["apps", "v1", "a", "statefulsets", "", ""])
        );
        assert_eq!(at("GET", "/apis/apps/v1"), want("get", ["", "", "", "", "", ""]));
        assert_eq!(at("GET", "/healthz"), want("get", ["", "", "", "", "", ""]));
        assert!(RequestInfo::parse(&Method::GET, &"/api/v1/namespaces/a%2Fb/pods".parse().unwrap()).is_err());
        assert!(RequestInfo::parse(&Method::OPTIONS, &"/api/v1/pods".parse().unwrap()).is_err());
    }

    #[test]
    fn queries_are_decoded() {
        let info = parse(
            "GET",
            "/api/v1/pods?labelSelector=a%3Db%2Cc+in+(d)&limit=5&limit=6&dryRun=All&x=%zz%4",
        );
        assert_eq!(info.query.get("labelSelector"), Some("a=b,c in (d)"));
        assert_eq!(info.query.number("limit").unwrap(), Some(5));
        assert_eq!(info.query.get("x"), Some("%zz%4"));
        assert!(parse("GET", "/api/v1/pods?limit=abc").query.number("limit").is_err());
    }
}
