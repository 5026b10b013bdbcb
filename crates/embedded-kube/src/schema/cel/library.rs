//! The functions that Kubernetes adds to CEL: lists, regular expressions, sets, URLs, quantities, versions, addresses
//! and named formats. Strings, optionals and the standard library come from the CEL crate.
//!
//! A function that is not here is an error when a rule is compiled, never a rule that quietly passes.

use std::net::IpAddr;
use std::sync::Arc;

use cel::common::types::{DYN_TYPE, INT_TYPE, LIST_TYPE, STRING_TYPE, Type};
use cel::common::value::{CowVal, Val};
use cel::objects::Opaque;
use cel::{DeclarationError, Env, ExecutionError, Value, extensions};

use crate::schema::formats;
use crate::schema::quantity::Quantity;

/// Names that the standard library, the operators and the extensions of the CEL crate answer to.
const BUILT_IN: &[&str] = &[
    "_?_:_",
    "_&&_",
    "_||_",
    "!_",
    "_-_",
    "_+_",
    "_*_",
    "_/_",
    "_%_",
    "_==_",
    "_!=_",
    "_>=_",
    "_<=_",
    "_>_",
    "_<_",
    "-_",
    "_[_]",
    "_[?_]",
    "_?._",
    "@in",
    "@not_strictly_false",
    "size",
    "contains",
    "startsWith",
    "endsWith",
    "matches",
    "string",
    "int",
    "uint",
    "double",
    "bool",
    "bytes",
    "type",
    "dyn",
    "duration",
    "timestamp",
    "getFullYear",
    "getMonth",
    "getDayOfYear",
    "getDayOfMonth",
    "getDate",
    "getDayOfWeek",
    "getHours",
    "getMinutes",
    "getSeconds",
    "getMilliseconds",
    "charAt",
    "indexOf",
    "lastIndexOf",
    "join",
    "lowerAscii",
    "upperAscii",
    "trim",
    "replace",
    "split",
    "substring",
    "format",
    "strings.quote",
    "reverse",
    "optional.of",
    "optional.none",
    "optional.ofNonZeroValue",
    "hasValue",
    "value",
    "orValue",
    "or",
    "slice",
    "flatten",
    "distinct",
    "sort",
    "@sortByAssociatedKeys",
    "lists.range",
    "math.greatest",
    "math.least",
    "math.abs",
    "math.ceil",
    "math.floor",
    "math.round",
    "math.trunc",
    "math.sign",
    "math.isNaN",
    "math.isInf",
    "math.isFinite",
    "math.@max",
    "math.@min",
    "base64.encode",
    "base64.decode",
];

/// Names of this file.
const OWN: &[&str] = &[
    "isSorted",
    "sum",
    "min",
    "max",
    "find",
    "findAll",
    "sets.contains",
    "sets.equivalent",
    "sets.intersects",
    "url",
    "isURL",
    "getScheme",
    "getHost",
    "getHostname",
    "getPort",
    "getEscapedPath",
    "quantity",
    "isQuantity",
    "isInteger",
    "asInteger",
    "asApproximateFloat",
    "add",
    "sub",
    "isLessThan",
    "isGreaterThan",
    "compareTo",
    "semver",
    "isSemver",
    "major",
    "minor",
    "patch",
    "ip",
    "isIP",
    "ip.isCanonical",
    "family",
    "isUnspecified",
    "isLoopback",
    "isLinkLocalMulticast",
    "isLinkLocalUnicast",
    "isGlobalUnicast",
    "cidr",
    "isCIDR",
    "containsIP",
    "containsCIDR",
    "prefixLength",
    "masked",
    "validate",
];

/// The named formats, `format.dns1123Label()`.
const FORMATS: &[(&str, &str)] = &[
    ("dns1123Label", "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"),
    (
        "dns1123Subdomain",
        "^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
    ),
    ("dns1035Label", "^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$"),
    (
        "qualifiedName",
        "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$",
    ),
    ("labelValue", "^(([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9])?$"),
    ("uri", ""),
    ("uuid", ""),
    ("byte", ""),
    ("date", ""),
    ("datetime", ""),
];

/// Whether a rule may call a function of this name.
pub(super) fn knows(name: &str) -> bool {
    BUILT_IN.contains(&name)
        || OWN.contains(&name)
        || name
            .strip_prefix("format.")
            .is_some_and(|f| f == "named" || FORMATS.iter().any(|(n, _)| *n == f))
}

/// The environment in which rules are compiled and run.
pub(super) fn environment() -> Result<Env, DeclarationError> {
    let mut env = Env::stdlib();
    env.add_extension(extensions::strings)?;
    env.add_extension(extensions::lists)?;
    env.add_extension(extensions::math)?;
    env.add_extension(extensions::encoders)?;
    lists(&mut env)?;
    texts(&mut env)?;
    quantities(&mut env)?;
    versions(&mut env)?;
    urls(&mut env)?;
    addresses(&mut env)?;
    Ok(env)
}

fn fail<T>(function: &str, text: impl ToString) -> Result<T, ExecutionError> {
    Err(ExecutionError::function_error(function, text))
}

/// Declares a function over owned values: `member!` as `a.f(b)`, `global!` as `f(a, b)`.
macro_rules! declare {
    ($env:expr, $how:ident, $name:expr, [$($kind:expr),*], $body:expr) => {{
        fn call<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
            let args = args.iter().map(|a| Value::try_from(a.as_ref())).collect::<Result<Vec<Value>, _>>()?;
            let body: fn(&[Value]) -> Result<Value, ExecutionError> = $body;
            let value: Box<dyn Val> = body(&args)?.try_into()?;
            Ok(CowVal::Owned(value))
        }
        let kinds: Vec<Type> = vec![$($kind),*];
        let names: Vec<&str> = kinds.iter().map(|k| k.name()).collect();
        let id = format!("kubernetes {} {} {}", stringify!($how), $name, names.join(","));
        declare!(@$how $env, $name, &id, kinds, call)?;
    }};
    (@global $env:expr, $name:expr, $id:expr, $kinds:expr, $call:expr) => {
        $env.add_overload($name, $id, $kinds, $call)
    };
    (@member $env:expr, $name:expr, $id:expr, $kinds:expr, $call:expr) => {{
        let mut kinds = $kinds;
        let target = kinds.remove(0);
        $env.add_member_overload($name, $id, target, kinds, $call)
    }};
}

fn list(value: &Value) -> &[Value] {
    match value {
        Value::List(items) => items,
        _ => &[],
    }
}

fn text(value: &Value) -> &str {
    match value {
        Value::String(text) => text,
        _ => "",
    }
}

fn string(text: impl Into<String>) -> Value {
    Value::String(Arc::new(text.into()))
}

fn order(function: &str, a: &Value, b: &Value) -> Result<std::cmp::Ordering, ExecutionError> {
    match a.partial_cmp(b) {
        Some(order) => Ok(order),
        None => fail(function, "no such overload"),
    }
}

fn lists(env: &mut Env) -> Result<(), DeclarationError> {
    declare!(env, member, "isSorted", [LIST_TYPE], |args| {
        for pair in list(&args[0]).windows(2) {
            if order("isSorted", &pair[0], &pair[1])?.is_gt() {
                return Ok(Value::Bool(false));
            }
        }
        Ok(Value::Bool(true))
    });
    declare!(env, member, "sum", [LIST_TYPE], |args| {
        let mut items = list(&args[0]).iter().cloned();
        let Some(mut total) = items.next() else {
            return Ok(Value::Int(0));
        };
        for item in items {
            total = (total + item)?;
        }
        Ok(total)
    });
    declare!(env, member, "min", [LIST_TYPE], |args| extreme(
        "min",
        list(&args[0]),
        std::cmp::Ordering::Less
    ));
    declare!(env, member, "max", [LIST_TYPE], |args| extreme(
        "max",
        list(&args[0]),
        std::cmp::Ordering::Greater
    ));
    declare!(env, member, "indexOf", [LIST_TYPE, DYN_TYPE], |args| {
        Ok(Value::Int(
            list(&args[0])
                .iter()
                .position(|v| *v == args[1])
                .map_or(-1, |i| i as i64),
        ))
    });
    declare!(env, member, "lastIndexOf", [LIST_TYPE, DYN_TYPE], |args| {
        Ok(Value::Int(
            list(&args[0])
                .iter()
                .rposition(|v| *v == args[1])
                .map_or(-1, |i| i as i64),
        ))
    });
    declare!(env, global, "sets.contains", [LIST_TYPE, LIST_TYPE], |args| Ok(
        Value::Bool(contains(&args[0], &args[1]))
    ));
    declare!(env, global, "sets.equivalent", [LIST_TYPE, LIST_TYPE], |args| {
        Ok(Value::Bool(
            contains(&args[0], &args[1]) && contains(&args[1], &args[0]),
        ))
    });
    declare!(env, global, "sets.intersects", [LIST_TYPE, LIST_TYPE], |args| {
        Ok(Value::Bool(list(&args[0]).iter().any(|v| list(&args[1]).contains(v))))
    });
    Ok(())
}

fn contains(all: &Value, some: &Value) -> bool {
    list(some).iter().all(|v| list(all).contains(v))
}

fn extreme(name: &str, items: &[Value], wanted: std::cmp::Ordering) -> Result<Value, ExecutionError> {
    let Some((first, rest)) = items.split_first() else {
        return fail(name, format!("{name} called on empty list"));
    };
    let mut best = first;
    for item in rest {
        if order(name, item, best)? == wanted {
            best = item;
        }
    }
    Ok(best.clone())
}

fn texts(env: &mut Env) -> Result<(), DeclarationError> {
    declare!(env, member, "find", [STRING_TYPE, STRING_TYPE], |args| {
        let found = regex("find", &args[1])?
            .find(text(&args[0]))
            .map(|m| m.as_str().to_owned());
        Ok(string(found.unwrap_or_default()))
    });
    declare!(env, member, "findAll", [STRING_TYPE, STRING_TYPE], |args| find_all(
        args,
        usize::MAX
    ));
    declare!(env, member, "findAll", [STRING_TYPE, STRING_TYPE, INT_TYPE], |args| {
        let limit = match &args[2] {
            Value::Int(limit) => usize::try_from(*limit).unwrap_or(usize::MAX),
            _ => usize::MAX,
        };
        find_all(args, limit)
    });
    for (name, _) in FORMATS {
        named_format(env, name)?;
    }
    declare!(env, global, "format.named", [STRING_TYPE], |args| {
        let name = text(&args[0]);
        match FORMATS.iter().find(|(n, _)| *n == name) {
            Some((name, _)) => Ok(opaque(Format(name))),
            None => fail(
                "format.named",
                format!("unknown format {name}; this server knows {}", names()),
            ),
        }
    });
    validate_format(env)
}

fn names() -> String {
    FORMATS.iter().map(|(n, _)| *n).collect::<Vec<_>>().join(", ")
}

fn find_all(args: &[Value], limit: usize) -> Result<Value, ExecutionError> {
    let regex = regex("findAll", &args[1])?;
    Ok(Value::List(Arc::new(
        regex
            .find_iter(text(&args[0]))
            .take(limit)
            .map(|m| string(m.as_str()))
            .collect(),
    )))
}

fn regex(function: &str, pattern: &Value) -> Result<regex::Regex, ExecutionError> {
    regex::Regex::new(text(pattern)).map_err(|e| ExecutionError::function_error(function, e))
}

#[derive(Debug, PartialEq, Eq)]
struct Format(&'static str);
impl Opaque for Format {
    fn runtime_type_name(&self) -> &str {
        "kubernetes.NamedFormat"
    }
}

fn named_format(env: &mut Env, name: &'static str) -> Result<(), DeclarationError> {
    macro_rules! formats {
        ($($format:literal),*) => {
            match name {
                $($format => declare!(env, global, concat!("format.", $format), [], |_| Ok(opaque(Format($format)))),)*
                _ => {}
            }
        };
    }
    formats!(
        "dns1123Label",
        "dns1123Subdomain",
        "dns1035Label",
        "qualifiedName",
        "labelValue",
        "uri",
        "uuid",
        "byte",
        "date",
        "datetime"
    );
    Ok(())
}

/// `validate` gives an optional list of complaints, which only the value side of the crate can make.
fn validate_format(env: &mut Env) -> Result<(), DeclarationError> {
    fn call<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
        let args = args
            .iter()
            .map(|a| Value::try_from(a.as_ref()))
            .collect::<Result<Vec<Value>, _>>()?;
        let [Value::Opaque(format), Value::String(text)] = args.as_slice() else {
            return fail("validate", "no such overload");
        };
        let name = format.downcast_ref::<Format>().map(|f| f.0).unwrap_or_default();
        let pattern = FORMATS
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(_, p)| *p)
            .unwrap_or_default();
        let valid = match pattern {
            "" => formats::accepts(name, text),
            pattern => regex::Regex::new(pattern).is_ok_and(|r| r.is_match(text)) && text.len() <= 253,
        };
        let complaint: Option<Box<dyn Val>> = match valid {
            true => None,
            false => Some(Value::List(Arc::new(vec![string(format!("invalid {name}"))])).try_into()?),
        };
        Ok(CowVal::owned(cel::common::types::CelOptional::from(complaint)))
    }
    let kind = Type::new_opaque_type("kubernetes.NamedFormat");
    env.add_member_overload(
        "validate",
        "kubernetes format.validate(string)",
        kind,
        vec![STRING_TYPE],
        call,
    )
}

fn opaque<T: Opaque + Eq>(value: T) -> Value {
    Value::Opaque(Arc::new(value))
}

fn inner<T: Clone + 'static>(function: &str, value: &Value) -> Result<T, ExecutionError> {
    match value {
        Value::Opaque(opaque) => match opaque.downcast_ref::<T>() {
            Some(value) => Ok(value.clone()),
            None => fail(function, "no such overload"),
        },
        _ => fail(function, "no such overload"),
    }
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

/// An absolute URI or an absolute path, as Kubernetes takes them.
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
