//! The table of API conversations: requests and expected responses, as data. It runs against any cluster, so that the
//! embedded server and a real kube-apiserver must behave in the same way.
//!
//! A conversation is a list of steps in a namespace of its own, `$NS` in paths and bodies. A step is a method with a path,
//! and optionally:
//! - `as`: acts as this user; `headers`: more headers; `body`: the body (`text` for a body that is no JSON)
//! - `status`: the code that must come back, or a list of codes
//! - `expect`: a part that the answer must have. Maps match if all named fields match; lists match item by item; `null`
//!   matches what is absent; a text `~PATTERN` matches by regular expression; all else must be equal
//! - `events`: on a watch, the events that must come, in this order; others may come between
//! - `save`: names for parts of the answer by JSON pointer, used as `$NAME` in later steps
//! - `again`: repeat until it matches (for what takes a moment)

use std::collections::BTreeMap;
use std::time::Duration;

use futures::{AsyncBufReadExt, TryStreamExt};
use http::Request;
use kube::client::Body;
use regex::Regex;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The table: names of files and their text.
pub const TABLE: &[(&str, &str)] = &[
    ("admission", include_str!("../tests/conversations/admission.yaml")),
    ("custom", include_str!("../tests/conversations/custom.yaml")),
    ("delete", include_str!("../tests/conversations/delete.yaml")),
    ("discovery", include_str!("../tests/conversations/discovery.yaml")),
    ("errors", include_str!("../tests/conversations/errors.yaml")),
    ("lists", include_str!("../tests/conversations/lists.yaml")),
    ("objects", include_str!("../tests/conversations/objects.yaml")),
    ("patches", include_str!("../tests/conversations/patches.yaml")),
    ("permissions", include_str!("../tests/conversations/permissions.yaml")),
    ("statefulsets", include_str!("../tests/conversations/statefulsets.yaml")),
    ("watches", include_str!("../tests/conversations/watches.yaml")),
];

/// For one conversation.
const LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Conversation {
    name: String,
    steps: Vec<Step>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    #[serde(
        alias = "GET",
        alias = "POST",
        alias = "PUT",
        alias = "PATCH",
        alias = "DELETE",
        alias = "HEAD"
    )]
    path: String,
    #[serde(default)]
    method: String,
    #[serde(default, rename = "as")]
    user: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    body: Option<Value>,
    text: Option<String>,
    status: Option<Value>,
    expect: Option<Value>,
    #[serde(default)]
    events: Vec<Value>,
    #[serde(default)]
    save: BTreeMap<String, String>,
    #[serde(default)]
    again: bool,
}

/// The result of one conversation.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// File and name of the conversation.
    pub name: String,
    /// The error, if there is one.
    pub failure: Option<String>,
}

/// A table that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the conversations in {file}: {error}")]
pub struct TableError {
    file: String,
    error: serde_yaml_ng::Error,
}

/// Runs a table against a cluster. The client must be an administrator, and must not retry by itself (`default_retry:
/// false` in its configuration), because some steps expect responses that ask to try again.
pub async fn run(client: &kube::Client, table: &[(&str, &str)]) -> Result<Vec<Outcome>, TableError> {
    let mut outcomes = Vec::new();
    for (file, text) in table {
        for (i, conversation) in parse(file, text)?.into_iter().enumerate() {
            let name = format!("{file}: {}", conversation.name);
            let namespace = format!("talk-{file}-{i}-{}", &uuid::Uuid::new_v4().simple().to_string()[..6]);
            let held = tokio::time::timeout(LIMIT, hold(client, &conversation, &namespace)).await;
            let failure = held.unwrap_or_else(|_| Err(format!("not done after {LIMIT:?}"))).err();
            outcomes.push(Outcome { name, failure });
        }
    }
    Ok(outcomes)
}

fn parse(file: &str, text: &str) -> Result<Vec<Conversation>, TableError> {
    let failed = |error| TableError {
        file: file.to_owned(),
        error,
    };
    // `GET: /path` is short for `method: GET, path: /path`.
    let mut raw: Value = serde_yaml_ng::from_str(text).map_err(failed)?;
    for conversation in raw.as_array_mut().into_iter().flatten() {
        for step in conversation["steps"]
            .as_array_mut()
            .into_iter()
            .flatten()
            .filter_map(Value::as_object_mut)
        {
            for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"] {
                if let Some(path) = step.shift_remove(method) {
                    step.insert("method".into(), method.into());
                    step.insert("path".into(), path);
                }
            }
        }
    }
    let yaml = serde_yaml_ng::to_value(raw).map_err(failed)?;
    serde_yaml_ng::from_value(yaml).map_err(failed)
}

async fn hold(client: &kube::Client, conversation: &Conversation, namespace: &str) -> Result<(), String> {
    let mut names = BTreeMap::from([("NS".to_owned(), namespace.to_owned())]);
    let (code, _) = send(
        client,
        "POST",
        "/api/v1/namespaces",
        &BTreeMap::new(),
        Some(json!({"metadata": {"name": namespace}}).to_string()),
    )
    .await?;
    if code != 201 {
        return Err(format!("cannot create the namespace {namespace}: {code}"));
    }
    let mut result = Ok(());
    for (i, step) in conversation.steps.iter().enumerate() {
        let attempts = if step.again { 150 } else { 1 };
        for attempt in 1..=attempts {
            result = take(client, step, &mut names)
                .await
                .map_err(|e| format!("step {}, {} {}: {e}", i + 1, step.method, fill_text(&step.path, &names)));
            if result.is_ok() || attempt == attempts {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        if result.is_err() {
            break;
        }
    }
    let gone = send(
        client,
        "DELETE",
        &format!("/api/v1/namespaces/{namespace}"),
        &BTreeMap::new(),
        None,
    )
    .await;
    result.and(gone.map(|_| ()))
}

async fn take(client: &kube::Client, step: &Step, names: &mut BTreeMap<String, String>) -> Result<(), String> {
    let path = fill_text(&step.path, names);
    let mut headers = step.headers.clone();
    if let Some(user) = &step.user {
        headers.insert("Impersonate-User".into(), fill_text(user, names));
    }
    let body = match (&step.body, &step.text) {
        (Some(body), _) => Some(fill(body, names).to_string()),
        (None, Some(text)) => Some(fill_text(text, names)),
        (None, None) => None,
    };
    if !step.events.is_empty() {
        let wanted: Vec<Value> = step.events.iter().map(|event| fill(event, names)).collect();
        return watch(client, &path, &wanted).await;
    }
    let (code, answer) = send(client, &step.method, &path, &headers, body).await?;
    let wanted: Vec<u16> = match &step.status {
        None => (200..300).collect(),
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_u64).map(|c| c as u16).collect(),
        Some(code) => code.as_u64().map(|c| c as u16).into_iter().collect(),
    };
    if !wanted.contains(&code) {
        let list = if wanted.len() > 5 {
            "success".to_owned()
        } else {
            format!("{wanted:?}")
        };
        return Err(format!("answered {code}, not {list}: {answer}"));
    }
    if let Some(expected) = &step.expect {
        matches(&fill(expected, names), &answer, "").map_err(|e| format!("{e}\n    in {answer}"))?;
    }
    for (name, pointer) in &step.save {
        let found = answer
            .pointer(pointer)
            .ok_or_else(|| format!("nothing at {pointer} to save as {name}"))?;
        let text = found.as_str().map(str::to_owned).unwrap_or_else(|| found.to_string());
        names.insert(name.clone(), text);
    }
    Ok(())
}

async fn send(
    client: &kube::Client,
    method: &str,
    path: &str,
    headers: &BTreeMap<String, String>,
    body: Option<String>,
) -> Result<(u16, Value), String> {
    let mut request = Request::builder().method(method).uri(path);
    if body.is_some() && !headers.keys().any(|name| name.eq_ignore_ascii_case("content-type")) {
        let kind = if method == "PATCH" {
            "application/merge-patch+json"
        } else {
            "application/json"
        };
        request = request.header("Content-Type", kind);
    }
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let request = request
        .body(Body::from(body.unwrap_or_default().into_bytes()))
        .map_err(|e| e.to_string())?;
    let answer = client.send(request).await.map_err(|e| e.to_string())?;
    let code = answer.status().as_u16();
    let warnings: Vec<Value> = answer
        .headers()
        .get_all("warning")
        .iter()
        .filter_map(|w| w.to_str().ok())
        .map(Value::from)
        .collect();
    let bytes = answer.into_body().collect_bytes().await.map_err(|e| e.to_string())?;
    let mut value = serde_json::from_slice(&bytes)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).trim().to_owned()));
    if let Some(object) = value.as_object_mut().filter(|_| !warnings.is_empty()) {
        object.insert("$warnings".into(), warnings.into());
    }
    Ok((code, value))
}

/// Reads a watch until all expected events have come.
async fn watch(client: &kube::Client, path: &str, wanted: &[Value]) -> Result<(), String> {
    let request = Request::builder()
        .uri(path)
        .body(Vec::new())
        .map_err(|e| e.to_string())?;
    let lines = client.request_stream(request).await.map_err(|e| e.to_string())?;
    let mut lines = lines.lines();
    let mut left = wanted.iter();
    let Some(mut next) = left.next() else { return Ok(()) };
    let mut seen = Vec::new();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(15);
    loop {
        let line = match tokio::time::timeout_at(deadline, lines.try_next()).await {
            Ok(Ok(Some(line))) => line,
            Ok(Ok(None)) => return Err(format!("the watch ended before {next}; seen: {seen:?}")),
            Ok(Err(e)) => return Err(e.to_string()),
            Err(_) => return Err(format!("no event {next} in time; seen: {seen:?}")),
        };
        let event: Value = serde_json::from_str(&line).map_err(|e| e.to_string())?;
        if matches(next, &event, "").is_ok() {
            match left.next() {
                Some(following) => next = following,
                None => return Ok(()),
            }
        }
        seen.push(format!("{} {}", event["type"], event["object"]["metadata"]["name"]));
    }
}

/// Whether the answer has what is expected.
fn matches(expected: &Value, found: &Value, at: &str) -> Result<(), String> {
    let differs = || {
        Err(format!(
            "{}: expected {expected}, found {found}",
            if at.is_empty() { "/" } else { at }
        ))
    };
    match (expected, found) {
        (Value::Null, Value::Null) => Ok(()),
        (Value::Object(fields), Value::Object(_)) => fields
            .iter()
            .try_for_each(|(name, value)| matches(value, &found[name], &format!("{at}/{name}"))),
        (Value::Array(wanted), Value::Array(items)) => {
            if wanted.len() != items.len() {
                return Err(format!(
                    "{at}: expected {} items, found {}: {found}",
                    wanted.len(),
                    items.len()
                ));
            }
            wanted
                .iter()
                .zip(items)
                .enumerate()
                .try_for_each(|(i, (w, f))| matches(w, f, &format!("{at}/{i}")))
        }
        (Value::String(pattern), found) if pattern.starts_with('~') => {
            let text = found.as_str().map(str::to_owned).unwrap_or_else(|| found.to_string());
            let pattern = Regex::new(&format!("(?s){}", &pattern[1..])).map_err(|e| e.to_string())?;
            if !found.is_null() && pattern.is_match(&text) {
                Ok(())
            } else {
                differs()
            }
        }
        (expected, found) if expected == found => Ok(()),
        _ => differs(),
    }
}

fn fill_text(text: &str, names: &BTreeMap<String, String>) -> String {
    names.iter().fold(text.to_owned(), |text, (name, value)| {
        text.replace(&format!("${name}"), value)
    })
}

fn fill(value: &Value, names: &BTreeMap<String, String>) -> Value {
    match value {
        Value::String(text) => fill_text(text, names).into(),
        Value::Array(items) => items.iter().map(|item| fill(item, names)).collect(),
        Value::Object(fields) => {
            let filled: Map<String, Value> = fields
                .iter()
                .map(|(name, value)| (fill_text(name, names), fill(value, names)))
                .collect();
            filled.into()
        }
        other => other.clone(),
    }
}
