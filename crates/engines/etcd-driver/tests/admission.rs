//! What is accepted and refused: `tests/cases/*.yaml` and every fixture.

#[path = "../../etcd/tests/data/mod.rs"]
mod data;

use data::{Case, Expect, cases, manifests};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::{conditions, wait::await_condition};
use stateward_etcd::api::names::MANAGER;
use stateward_etcd::api::{GROUP, VERSION};

/// Messages of the API server's own, for what the schema says without CEL.
const BUILT_IN: [&str; 7] = [
    "Required value",
    "Unsupported value",
    "must be of type integer",
    "must be of type date-time",
    "should be greater than or equal to 0",
    "greater than or equal to 0",
    "should be less than or equal to 3650",
];

#[test]
fn every_expected_message_is_one_of_the_schema_and_every_rule_has_a_case() {
    let mut messages = Vec::new();
    for crd in stateward_etcd::api::crds::all() {
        let crd = serde_json::to_value(crd).expect("JSON");
        collect_messages(&crd, &mut messages);
    }
    let expected: Vec<String> = cases()
        .into_iter()
        .filter_map(|case| case.refusal().map(str::to_owned))
        .collect();
    for part in &expected {
        let known = messages.iter().any(|message| message.contains(part))
            || BUILT_IN.iter().any(|message| message.contains(part.as_str()));
        assert!(known, "no rule says \"{part}\"");
    }
    for message in &messages {
        assert!(
            expected.iter().any(|part| message.contains(part)),
            "no case is refused with \"{message}\""
        );
    }
}

fn collect_messages(value: &serde_json::Value, messages: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            if let Some(serde_json::Value::Array(rules)) = fields.get("x-kubernetes-validations") {
                messages.extend(
                    rules
                        .iter()
                        .filter_map(|rule| rule["message"].as_str())
                        .map(str::to_owned),
                );
            }
            fields.values().for_each(|inner| collect_messages(inner, messages));
        }
        serde_json::Value::Array(items) => items.iter().for_each(|inner| collect_messages(inner, messages)),
        _ => {}
    }
}

#[tokio::test]
async fn the_embedded_api_server_agrees() {
    let cluster = embedded_kube::Cluster::start().await.expect("an embedded Kubernetes");
    agrees(cluster.client()).await;
}

#[tokio::test]
#[ignore = "needs an API server: ./x kube test runs it; else set KUBECONFIG and pass --ignored"]
async fn an_api_server_agrees() {
    agrees(kube::Client::try_default().await.expect("a kubeconfig that works")).await;
}

/// Expected flow: definitions are applied and established; then each fixture and case is a dry run.
async fn agrees(client: kube::Client) {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let apply = PatchParams::apply(MANAGER).force();
    for crd in stateward_etcd::api::crds::all() {
        let name = crd.metadata.name.clone().expect("name");
        definitions
            .patch(&name, &apply, &Patch::Apply(&crd))
            .await
            .expect("definition accepted");
        let established = await_condition(definitions.clone(), &name, conditions::is_crd_established());
        let established = tokio::time::timeout(std::time::Duration::from_secs(60), established).await;
        let crd = established.expect("in time").expect("watched").expect("there");
        let odd = crd.status.and_then(|status| status.conditions).unwrap_or_default();
        let odd: Vec<_> = odd
            .into_iter()
            .filter(|condition| condition.type_ == "NonStructuralSchema")
            .collect();
        assert!(odd.is_empty(), "{name}: {odd:?}");
    }
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = serde_json::json!({"metadata": {"generateName": "stateward-admission-"}});
    let namespace: Namespace = serde_json::from_value(namespace).expect("namespace");
    let namespace = namespaces
        .create(&PostParams::default(), &namespace)
        .await
        .expect("namespace accepted");
    let server = Server {
        client,
        namespace: namespace.metadata.name.expect("name"),
    };

    let mut failures = Vec::new();
    for (file, manifest) in manifests() {
        if let Err(error) = server.dry_run(&manifest).await {
            failures.push(format!("{file}: {error}"));
        }
    }
    let cases = cases();
    let count = cases.len();
    for case in cases {
        if let Some(failure) = server.run(&case).await {
            failures.push(failure);
        }
    }
    let _ = namespaces.delete(&server.namespace, &DeleteParams::default()).await;
    assert!(
        failures.is_empty(),
        "{} of {count}:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

struct Server {
    client: kube::Client,
    namespace: String,
}

impl Server {
    async fn run(&self, case: &Case) -> Option<String> {
        let reply = match &case.before {
            None => self.dry_run(&case.apply).await,
            Some(before) => self.change(before, &case.apply).await,
        };
        match (&case.expect, reply) {
            (Expect::Ok, Ok(())) => None,
            (Expect::Refused(part), Err(message)) if message.contains(part) => None,
            (expect, reply) => Some(format!("{}: expected {expect:?}, got {reply:?}", case.name)),
        }
    }

    fn api(&self, manifest: &serde_json::Value) -> Api<DynamicObject> {
        let kind = manifest["kind"].as_str().expect("kind");
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, VERSION, kind));
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
    }

    async fn dry_run(&self, manifest: &serde_json::Value) -> Result<(), String> {
        self.api(manifest)
            .create(&dry(), &object(manifest))
            .await
            .map(drop)
            .map_err(message)
    }

    async fn change(&self, before: &serde_json::Value, after: &serde_json::Value) -> Result<(), String> {
        let objects = self.api(before);
        let created = objects.create(&PostParams::default(), &object(before)).await;
        let created = created.map_err(|error| format!("before: {}", message(error)))?;
        let name = created.metadata.name.expect("name");
        let mut changed = object(after);
        changed.metadata.resource_version = created.metadata.resource_version;
        let reply = objects.replace(&name, &dry(), &changed).await;
        let deleted = objects.delete(&name, &DeleteParams::default()).await;
        deleted.map_err(|error| format!("clean-up: {}", message(error)))?;
        reply.map(drop).map_err(message)
    }
}

fn object(manifest: &serde_json::Value) -> DynamicObject {
    serde_json::from_value(manifest.clone()).expect("an object")
}

fn dry() -> PostParams {
    PostParams {
        dry_run: true,
        ..PostParams::default()
    }
}

fn message(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message,
        other => other.to_string(),
    }
}
