//! The JSONPath of printer columns: fields, indexes, `[*]` and filters such as `[?(@.type=="Ready")]`. Kubernetes writes it in a form of
//! its own, with `\.` for a dot in a name and without `$`; here it becomes the standard's form.

use std::iter::Peekable;
use std::str::Chars;

use jsonpath_rust::parser::model::JpQuery;
use jsonpath_rust::parser::parse_json_path;
use jsonpath_rust::query::js_path_process;
use serde_json::Value;

/// A parsed path.
#[derive(Clone, Debug)]
pub(crate) struct Path(JpQuery);

impl Path {
    /// Reads a path; `None` when it is not one, or uses `..`, which columns do not need.
    pub(crate) fn parse(text: &str) -> Option<Path> {
        parse_json_path(&standard(text)?).ok().map(Path)
    }

    /// Every value at the path.
    pub(crate) fn find<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        let found = js_path_process(&self.0, value).unwrap_or_default();
        found.into_iter().map(|found| found.val()).collect()
    }
}

/// The standard's form: every name is quoted.
fn standard(text: &str) -> Option<String> {
    let text = text.trim();
    let text = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')).unwrap_or(text);
    let text = text.strip_prefix('$').unwrap_or(text);
    let mut out = "$".to_owned();
    let mut chars = text.chars().peekable();
    let mut depth = 0;
    // A lone dot is the object itself.
    if text == "." {
        return Some(out);
    }
    if chars.peek().is_some_and(|first| !matches!(first, '.' | '[')) {
        out.push_str(&quoted(&name(&mut chars, false)?));
    }
    while let Some(c) = chars.next() {
        match c {
            '.' if chars.peek() == Some(&'[') => {}
            '.' if chars.next_if_eq(&'*').is_some() => out.push_str("[*]"),
            // A number in a filter.
            '.' if depth > 0 && out.ends_with(|last: char| last.is_ascii_digit()) => out.push(c),
            '.' => out.push_str(&quoted(&name(&mut chars, depth > 0)?)),
            '\'' | '"' => {
                let mut inner = String::new();
                loop {
                    match chars.next()? {
                        '\\' => inner.push(chars.next()?),
                        end if end == c => break,
                        other => inner.push(other),
                    }
                }
                out.push_str(&Value::from(inner).to_string());
            }
            c => {
                depth += match c {
                    '[' => 1,
                    ']' => -1,
                    _ if depth == 0 => return None,
                    _ => 0,
                };
                out.push(c);
            }
        }
    }
    Some(out)
}

fn quoted(name: &str) -> String {
    format!("[{}]", Value::from(name))
}

fn name(chars: &mut Peekable<Chars<'_>>, in_filter: bool) -> Option<String> {
    let mut name = String::new();
    let ends = |c: &char| {
        matches!(c, '.' | '[') || (in_filter && matches!(c, ')' | '=' | '!' | '<' | '>' | ' ' | ']' | '&' | '|'))
    };
    while let Some(c) = chars.next_if(|c| !ends(c)) {
        name.push(if c == '\\' { chars.next()? } else { c });
    }
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn finds_what_columns_ask_for() {
        let object = json!({
            "metadata": {"labels": {"app.kubernetes.io/name": "x"}},
            "spec": {"size": 3, "with-dash": true, "list": [{"n": 1}, {"n": 2}]},
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
            (".spec.list[?(@.n<1.5)].n", json!([1])),
            (".status.conditions.[0].type", json!(["Ready"])),
            (".spec.with-dash", json!([true])),
            ("{.spec.size}", json!([3])),
            (".none.at.all", json!([])),
        ] {
            let parsed = Path::parse(path).unwrap_or_else(|| panic!("{path}"));
            assert_eq!(json!(parsed.find(&object)), expected, "{path}");
        }
        for bad in [".a[", ".a[?(@.b==)]", ".a..b", ".a[x]", ".a['b", ".a[1"] {
            assert!(Path::parse(bad).is_none(), "{bad}");
        }
    }
}
