//! The types that Kubernetes adds to CEL: quantities, versions, URLs, addresses and networks.

use std::net::IpAddr;

use cel::common::types::{DYN_TYPE, INT_TYPE, STRING_TYPE, Type};
use cel::common::value::{CowVal, Val};
use cel::objects::Opaque;
use cel::{DeclarationError, Env, ExecutionError, Value};

use super::{fail, inner, opaque, string, text};
use crate::schema::formats;
use crate::schema::quantity::Quantity;

/// Declares the types and their functions.
pub(super) fn extension(env: &mut Env) -> Result<(), DeclarationError> {
    quantities(env)?;
    versions(env)?;
    urls(env)?;
    addresses(env)
}

impl Opaque for Quantity {
    fn runtime_type_name(&self) -> &str {
        "kubernetes.Quantity"
    }
}

fn quantities(env: &mut Env) -> Result<(), DeclarationError> {
    fn quantity(value: &Value) -> Result<Quantity, ExecutionError> {
        match value {
            Value::Int(int) => Ok(Quantity::of(*int)),
            value => inner("quantity", value),
        }
    }
    let kind = || Type::new_opaque_type("kubernetes.Quantity");
    env.add_type(kind())?;
    declare!(
        env,
        global,
        "quantity",
        [STRING_TYPE],
        |args| match Quantity::parse(text(&args[0])) {
            Some(quantity) => Ok(opaque(quantity)),
            None => fail(
                "quantity",
                "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
            ),
        }
    );
    declare!(env, global, "isQuantity", [STRING_TYPE], |args| {
        Ok(Value::Bool(Quantity::parse(text(&args[0])).is_some()))
    });
    declare!(env, member, "isInteger", [kind()], |args| Ok(Value::Bool(
        quantity(&args[0])?.as_integer().is_some()
    )));
    declare!(
        env,
        member,
        "asInteger",
        [kind()],
        |args| match quantity(&args[0])?.as_integer() {
            Some(int) => Ok(Value::Int(int)),
            None => fail("asInteger", "cannot convert value to integer"),
        }
    );
    declare!(env, member, "asApproximateFloat", [kind()], |args| Ok(Value::Float(
        quantity(&args[0])?.as_float()
    )));
    macro_rules! arithmetic {
        ($name:literal, $method:ident, $other:expr) => {
            declare!(env, member, $name, [kind(), $other], |args| {
                match quantity(&args[0])?.$method(quantity(&args[1])?) {
                    Some(result) => Ok(opaque(result)),
                    None => fail($name, "overflow"),
                }
            });
        };
    }
    arithmetic!("add", checked_add, kind());
    arithmetic!("add", checked_add, INT_TYPE);
    arithmetic!("sub", checked_sub, kind());
    arithmetic!("sub", checked_sub, INT_TYPE);
    declare!(env, member, "isLessThan", [kind(), kind()], |a| Ok(Value::Bool(
        quantity(&a[0])? < quantity(&a[1])?
    )));
    declare!(env, member, "isGreaterThan", [kind(), kind()], |a| Ok(Value::Bool(
        quantity(&a[0])? > quantity(&a[1])?
    )));
    declare!(env, member, "compareTo", [kind(), kind()], |a| {
        Ok(Value::Int(quantity(&a[0])?.cmp(&quantity(&a[1])?) as i64))
    });
    Ok(())
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Version(semver::Version);
impl Opaque for Version {
    fn runtime_type_name(&self) -> &str {
        "kubernetes.Semver"
    }
}

fn versions(env: &mut Env) -> Result<(), DeclarationError> {
    fn version(value: &Value) -> Result<semver::Version, ExecutionError> {
        Ok(inner::<Version>("semver", value)?.0)
    }
    let kind = || Type::new_opaque_type("kubernetes.Semver");
    env.add_type(kind())?;
    declare!(
        env,
        global,
        "semver",
        [STRING_TYPE],
        |args| match semver::Version::parse(text(&args[0])) {
            Ok(version) => Ok(opaque(Version(version))),
            Err(error) => fail("semver", error),
        }
    );
    declare!(env, global, "isSemver", [STRING_TYPE], |args| {
        Ok(Value::Bool(semver::Version::parse(text(&args[0])).is_ok()))
    });
    declare!(env, member, "major", [kind()], |args| Ok(Value::Int(
        version(&args[0])?.major as i64
    )));
    declare!(env, member, "minor", [kind()], |args| Ok(Value::Int(
        version(&args[0])?.minor as i64
    )));
    declare!(env, member, "patch", [kind()], |args| Ok(Value::Int(
        version(&args[0])?.patch as i64
    )));
    // Build metadata does not order versions, so precedence decides.
    declare!(env, member, "isLessThan", [kind(), kind()], |a| {
        Ok(Value::Bool(version(&a[0])?.cmp_precedence(&version(&a[1])?).is_lt()))
    });
    declare!(env, member, "isGreaterThan", [kind(), kind()], |a| {
        Ok(Value::Bool(version(&a[0])?.cmp_precedence(&version(&a[1])?).is_gt()))
    });
    declare!(env, member, "compareTo", [kind(), kind()], |a| {
        Ok(Value::Int(version(&a[0])?.cmp_precedence(&version(&a[1])?) as i64))
    });
    Ok(())
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Url(http::Uri);
impl Opaque for Url {
    fn runtime_type_name(&self) -> &str {
        "kubernetes.URL"
    }
}

/// An absolute URI or an absolute path, as Kubernetes accepts them.
fn parse_url(text: &str) -> Option<http::Uri> {
    let uri: http::Uri = text.parse().ok()?;
    (text.starts_with('/') || uri.scheme().is_some()).then_some(uri)
}

fn urls(env: &mut Env) -> Result<(), DeclarationError> {
    fn url(value: &Value) -> Result<http::Uri, ExecutionError> {
        Ok(inner::<Url>("url", value)?.0)
    }
    let kind = || Type::new_opaque_type("kubernetes.URL");
    env.add_type(kind())?;
    declare!(
        env,
        global,
        "url",
        [STRING_TYPE],
        |args| match parse_url(text(&args[0])) {
            Some(url) => Ok(opaque(Url(url))),
            None => fail(
                "url",
                format!("URL parse error during conversion from string: {}", text(&args[0]))
            ),
        }
    );
    declare!(env, global, "isURL", [STRING_TYPE], |args| Ok(Value::Bool(
        parse_url(text(&args[0])).is_some()
    )));
    declare!(env, member, "getScheme", [kind()], |a| Ok(string(
        url(&a[0])?.scheme_str().unwrap_or_default()
    )));
    declare!(env, member, "getHost", [kind()], |a| {
        let url = url(&a[0])?;
        let authority = url.authority().map(|a| a.as_str()).unwrap_or_default();
        Ok(string(authority.rsplit('@').next().unwrap_or_default()))
    });
    declare!(env, member, "getHostname", [kind()], |a| {
        Ok(string(url(&a[0])?.host().unwrap_or_default().trim_matches(['[', ']'])))
    });
    declare!(env, member, "getPort", [kind()], |a| {
        Ok(string(url(&a[0])?.port().map(|p| p.to_string()).unwrap_or_default()))
    });
    declare!(env, member, "getEscapedPath", [kind()], |a| Ok(string(
        url(&a[0])?.path()
    )));
    Ok(())
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Ip(IpAddr);
impl Opaque for Ip {
    fn runtime_type_name(&self) -> &str {
        "net.IP"
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Cidr(IpAddr, u8);
impl Opaque for Cidr {
    fn runtime_type_name(&self) -> &str {
        "net.CIDR"
    }
}

impl Cidr {
    fn parse(text: &str) -> Option<Cidr> {
        let (address, length) = text.split_once('/')?;
        formats::accepts("cidr", text).then_some(())?;
        Some(Cidr(address.parse().ok()?, length.parse().ok()?))
    }

    fn masked(&self) -> Cidr {
        let address = match self.0 {
            IpAddr::V4(a) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.1)).unwrap_or(0);
                IpAddr::V4((u32::from(a) & mask).into())
            }
            IpAddr::V6(a) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.1)).unwrap_or(0);
                IpAddr::V6((u128::from(a) & mask).into())
            }
        };
        Cidr(address, self.1)
    }

    fn contains(&self, address: IpAddr) -> bool {
        self.0.is_ipv4() == address.is_ipv4() && Cidr(address, self.1).masked() == self.masked()
    }
}

fn addresses(env: &mut Env) -> Result<(), DeclarationError> {
    fn ip(value: &Value) -> Result<IpAddr, ExecutionError> {
        match value {
            Value::String(text) => text.parse().or_else(|e| fail("ip", e)),
            value => Ok(inner::<Ip>("ip", value)?.0),
        }
    }
    fn cidr(value: &Value) -> Result<Cidr, ExecutionError> {
        match value {
            Value::String(text) => match Cidr::parse(text) {
                Some(cidr) => Ok(cidr),
                None => fail(
                    "cidr",
                    format!("network address parse error during conversion from string: {text}"),
                ),
            },
            value => inner("cidr", value),
        }
    }
    let (address, network) = (|| Type::new_opaque_type("net.IP"), || Type::new_opaque_type("net.CIDR"));
    env.add_type(address())?;
    env.add_type(network())?;
    declare!(env, global, "ip", [STRING_TYPE], |a| Ok(opaque(Ip(ip(&a[0])?))));
    declare!(env, global, "isIP", [STRING_TYPE], |a| Ok(Value::Bool(
        text(&a[0]).parse::<IpAddr>().is_ok()
    )));
    declare!(env, global, "ip.isCanonical", [STRING_TYPE], |a| {
        Ok(Value::Bool(ip(&a[0])?.to_string() == text(&a[0])))
    });
    declare!(env, member, "family", [address()], |a| Ok(Value::Int(
        if ip(&a[0])?.is_ipv4() { 4 } else { 6 }
    )));
    declare!(env, member, "isUnspecified", [address()], |a| Ok(Value::Bool(
        ip(&a[0])?.is_unspecified()
    )));
    declare!(env, member, "isLoopback", [address()], |a| Ok(Value::Bool(
        ip(&a[0])?.is_loopback()
    )));
    declare!(env, member, "isGlobalUnicast", [address()], |a| {
        let ip = ip(&a[0])?;
        let local = match ip {
            IpAddr::V4(a) => a.is_link_local() || a.is_broadcast(),
            IpAddr::V6(a) => a.is_unicast_link_local(),
        };
        Ok(Value::Bool(
            !ip.is_unspecified() && !ip.is_loopback() && !ip.is_multicast() && !local,
        ))
    });
    declare!(env, member, "isLinkLocalUnicast", [address()], |a| {
        Ok(Value::Bool(match ip(&a[0])? {
            IpAddr::V4(a) => a.is_link_local(),
            IpAddr::V6(a) => a.is_unicast_link_local(),
        }))
    });
    declare!(env, member, "isLinkLocalMulticast", [address()], |a| {
        Ok(Value::Bool(match ip(&a[0])? {
            IpAddr::V4(a) => a.octets()[..3] == [224, 0, 0],
            IpAddr::V6(a) => a.segments()[0] & 0xff0f == 0xff02,
        }))
    });
    declare!(env, global, "cidr", [STRING_TYPE], |a| Ok(opaque(cidr(&a[0])?)));
    declare!(env, global, "isCIDR", [STRING_TYPE], |a| Ok(Value::Bool(
        Cidr::parse(text(&a[0])).is_some()
    )));
    declare!(env, member, "containsIP", [network(), DYN_TYPE], |a| Ok(Value::Bool(
        cidr(&a[0])?.contains(ip(&a[1])?)
    )));
    declare!(env, member, "containsCIDR", [network(), DYN_TYPE], |a| {
        let (outer, inner) = (cidr(&a[0])?, cidr(&a[1])?);
        Ok(Value::Bool(outer.1 <= inner.1 && outer.contains(inner.0)))
    });
    declare!(env, member, "ip", [network()], |a| Ok(opaque(Ip(cidr(&a[0])?.0))));
    declare!(env, member, "masked", [network()], |a| Ok(opaque(
        cidr(&a[0])?.masked()
    )));
    declare!(env, member, "prefixLength", [network()], |a| Ok(Value::Int(i64::from(
        cidr(&a[0])?.1
    ))));
    Ok(())
}
