//! The JSONPath of printer columns: fields, indexes, `[*]` and filters such as `[?(@.type=="Ready")]`.

use std::iter::Peekable;
use std::str::Chars;

use serde_json::Value;

/// A parsed path.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Path(Vec<Step>);

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    Index(i64),
    All,
    Filter(Path, Option<(Test, Value)>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Test {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Path {
    /// Reads a path; `None` when it is not one, or uses what columns do not need (slices, unions, `..`).
    pub(crate) fn parse(text: &str) -> Option<Path> {
        let text = text.trim();
        let text = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')).unwrap_or(text);
        let text = text.strip_prefix('$').unwrap_or(text);
        let mut chars = text.chars().peekable();
        let path = parse_steps(&mut chars, false)?;
        chars.next().is_none().then_some(path)
    }

    /// Every value at the path.
    pub(crate) fn find<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        let mut found = vec![value];
        for step in &self.0 {
            found = found.into_iter().flat_map(|value| step.apply(value)).collect();
        }
        found
    }
}

impl Step {
    fn apply<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match self {
            Step::Field(name) => value.get(name).into_iter().collect(),
            Step::Index(index) => {
                let Some(items) = value.as_array() else { return vec![] };
                let index = if *index < 0 { index + items.len() as i64 } else { *index };
                usize::try_from(index)
                    .ok()
                    .and_then(|i| items.get(i))
                    .into_iter()
                    .collect()
            }
            Step::All => match value {
                Value::Array(items) => items.iter().collect(),
                Value::Object(map) => map.values().collect(),
                _ => vec![],
            },
            Step::Filter(path, test) => {
                let items: Vec<&Value> = match value {
                    Value::Array(items) => items.iter().collect(),
                    _ => vec![],
                };
                let passes = |item: &&Value| {
                    let found = path.find(item);
                    match test {
                        None => !found.is_empty(),
                        Some((test, wanted)) => found.first().is_some_and(|got| test.holds(got, wanted)),
                    }
                };
                items.into_iter().filter(passes).collect()
            }
        }
    }
}

impl Test {
    fn holds(self, got: &Value, wanted: &Value) -> bool {
        let order = match (got, wanted) {
            (Value::Number(a), Value::Number(b)) => a.as_f64().partial_cmp(&b.as_f64()),
            (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
            (a, b) => return matches!((self, a == b), (Test::Equal, true) | (Test::NotEqual, false)),
        };
        order.is_some_and(|order| match self {
            Test::Equal => order.is_eq(),
            Test::NotEqual => order.is_ne(),
            Test::Less => order.is_lt(),
            Test::LessOrEqual => order.is_le(),
            Test::Greater => order.is_gt(),
            Test::GreaterOrEqual => order.is_ge(),
        })
    }
}

type Input<'a> = Peekable<Chars<'a>>;

fn parse_steps(chars: &mut Input<'_>, in_filter: bool) -> Option<Path> {
    let mut steps = Vec::new();
    loop {
        match chars.peek() {
            Some('.') => {
                chars.next();
                if chars.peek() == Some(&'[') {
                    continue;
                }
                let name = parse_name(chars, in_filter)?;
                match name.as_str() {
                    "*" => steps.push(Step::All),
                    // A lone dot is the object itself.
                    "" if steps.is_empty() && chars.peek().is_none() => {}
                    "" => return None,
                    _ => steps.push(Step::Field(name)),
                }
            }
            Some('[') => {
                chars.next();
                steps.push(parse_bracket(chars)?);
            }
            Some(c) if steps.is_empty() && !in_filter && (c.is_alphanumeric() || *c == '_') => {
                steps.push(Step::Field(parse_name(chars, false)?));
            }
            _ => return Some(Path(steps)),
        }
    }
}

fn parse_name(chars: &mut Input<'_>, in_filter: bool) -> Option<String> {
    let mut name = String::new();
    while let Some(c) = chars.peek().copied() {
        match c {
            '.' | '[' => break,
            ')' | '=' | '!' | '<' | '>' | ' ' | ']' if in_filter => break,
            '\\' => {
                chars.next();
                name.push(chars.next()?);
                continue;
            }
            c => name.push(c),
        }
        chars.next();
    }
    Some(name)
}

fn skip_spaces(chars: &mut Input<'_>) {
    while chars.peek() == Some(&' ') {
        chars.next();
    }
}

fn parse_bracket(chars: &mut Input<'_>) -> Option<Step> {
    let step = match chars.peek()? {
        '\'' | '"' => Step::Field(parse_quoted(chars)?),
        '*' => {
            chars.next();
            Step::All
        }
        '?' => {
            chars.next();
            (chars.next()? == '(').then_some(())?;
            skip_spaces(chars);
            (chars.next()? == '@').then_some(())?;
            let path = parse_steps(chars, true)?;
            skip_spaces(chars);
            let test = if chars.peek() == Some(&')') {
                None
            } else {
                Some(parse_test(chars)?)
            };
            skip_spaces(chars);
            (chars.next()? == ')').then_some(())?;
            Step::Filter(path, test)
        }
        _ => {
            let mut digits = String::new();
            while let Some(c) = chars.peek().filter(|c| c.is_ascii_digit() || **c == '-') {
                digits.push(*c);
                chars.next();
            }
            Step::Index(digits.parse().ok()?)
        }
    };
    (chars.next()? == ']').then_some(step)
}

fn parse_quoted(chars: &mut Input<'_>) -> Option<String> {
    let quote = chars.next()?;
    let mut text = String::new();
    loop {
        match chars.next()? {
            '\\' => text.push(chars.next()?),
            c if c == quote => return Some(text),
            c => text.push(c),
        }
    }
}

fn parse_test(chars: &mut Input<'_>) -> Option<(Test, Value)> {
    let first = chars.next()?;
    let with_equal = chars.next_if_eq(&'=').is_some();
    let test = match (first, with_equal) {
        ('=', true) => Test::Equal,
        ('!', true) => Test::NotEqual,
        ('<', false) => Test::Less,
        ('<', true) => Test::LessOrEqual,
        ('>', false) => Test::Greater,
        ('>', true) => Test::GreaterOrEqual,
        _ => return None,
    };
    skip_spaces(chars);
    let value = match chars.peek()? {
        '\'' | '"' => Value::String(parse_quoted(chars)?),
        _ => {
            let mut text = String::new();
            while let Some(c) = chars.peek().filter(|c| !matches!(c, ')' | ' ')) {
                text.push(*c);
                chars.next();
            }
            serde_json::from_str(&text).ok()?
        }
    };
    Some((test, value))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn finds_what_columns_ask_for() {
        let object = json!({
            "metadata": {"labels": {"app.kubernetes.io/name": "x"}},
            "spec": {"size": 3, "list": [{"n": 1}, {"n": 2}]},
            "status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "Available", "status": "True"}]},
        });
        for (path, expected) in [
            (".spec.size", json!([3])),
            ("spec.size", json!([3])),
            (".spec.list[0].n", json!([1])),
            (".spec.list[-1].n", json!([2])),
            (".spec.list[*].n", json!([1, 2])),
            (".spec.list[?(@.n>1)].n", json!([2])),
            (".metadata.labels.app\\.kubernetes\\.io/name", json!(["x"])),
            (".metadata.labels['app.kubernetes.io/name']", json!(["x"])),
            (".status.conditions[?(@.type==\"Available\")].status", json!(["True"])),
            (".status.conditions[?(@.type=='Ready')].status", json!(["False"])),
            (".status.conditions[?( @.type != 'Ready' )].status", json!(["True"])),
            ("{.spec.size}", json!([3])),
            (".none.at.all", json!([])),
        ] {
            let parsed = Path::parse(path).unwrap_or_else(|| panic!("{path}"));
            assert_eq!(json!(parsed.find(&object)), expected, "{path}");
        }
        for bad in [".a[", ".a[?(@.b==)]", ".a..b", ".a[x]", ".a['b", ".a[1"] {
            assert_eq!(Path::parse(bad), None, "{bad}");
        }
    }
}
