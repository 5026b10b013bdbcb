//! The functions that Kubernetes adds to CEL: lists, regular expressions, sets, URLs, quantities, versions, addresses
//! and named formats. Strings, optionals and the standard library come from the CEL crate.
//!
//! A function that is missing here is an error when a rule is compiled, so no rule passes silently.

use std::sync::Arc;

use cel::common::types::{DYN_TYPE, INT_TYPE, LIST_TYPE, STRING_TYPE, Type};
use cel::common::value::{CowVal, Val};
use cel::objects::Opaque;
use cel::{DeclarationError, Env, ExecutionError, Value, extensions};

use crate::schema::formats;

/// Names that the standard library, the operators and the extensions of the CEL crate define.
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

/// Names that this file defines.
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
    types::extension(&mut env)?;
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

mod types;

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

/// `validate` returns an optional list of errors, which only the value side of the crate can build.
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
