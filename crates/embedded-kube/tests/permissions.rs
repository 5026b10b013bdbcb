//! Authentication and RBAC.

use embedded_kube::Cluster;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenReview};
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, Role, RoleBinding};
use kube::api::{Api, ListParams, PostParams};
use serde_json::json;

async fn may(client: &kube::Client, verb: &str, resource: &str, name: &str) -> bool {
    let review: SelfSubjectAccessReview = serde_json::from_value(json!({
        "spec": {"resourceAttributes": {"verb": verb, "resource": resource, "name": name, "namespace": "default"}},
    }))
    .unwrap();
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    api.create(&PostParams::default(), &review)
        .await
        .unwrap()
        .status
        .unwrap()
        .allowed
}

#[tokio::test]
async fn permissions_come_from_roles_and_nothing_else() {
    let cluster = Cluster::start().await.unwrap();
    let admin = cluster.client();
    let params = PostParams::default();
    let role: Role = serde_json::from_value(json!({"metadata": {"name": "reader"}, "rules": [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": ["mine"]},
    ]}))
    .unwrap();
    Api::<Role>::default_namespaced(admin.clone())
        .create(&params, &role)
        .await
        .unwrap();
    let binding: RoleBinding = serde_json::from_value(json!({"metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}]}))
    .unwrap();
    Api::<RoleBinding>::default_namespaced(admin.clone())
        .create(&params, &binding)
        .await
        .unwrap();

    // A token of the service account, over TLS.
    let accounts: Api<ServiceAccount> = Api::default_namespaced(admin.clone());
    let request: TokenRequest = serde_json::from_value(json!({"spec": {"audiences": []}})).unwrap();
    let token = accounts
        .create_token_request("default", &params, &request)
        .await
        .unwrap()
        .status
        .unwrap()
        .token
        .unwrap();
    let mut config = kube::Config::new(format!("https://{}", cluster.address()).parse().unwrap());
    config.root_cert = Some(vec![pem(cluster.ca())]);
    config.auth_info.token = Some(token.clone().into());
    let client = kube::Client::try_from(config.clone()).unwrap();

    Api::<ConfigMap>::namespaced(client.clone(), "default")
        .list(&ListParams::default())
        .await
        .unwrap();
    let refused = Api::<Pod>::namespaced(client.clone(), "default")
        .get("x")
        .await
        .unwrap_err();
    let text = "pods \"x\" is forbidden: User \"system:serviceaccount:default:default\" cannot get resource \"pods\" in \
                API group \"\" in the namespace \"default\"";
    assert!(
        matches!(&refused, kube::Error::Api(s) if s.code == 403 && s.message == text),
        "{refused}"
    );
    let elsewhere = Api::<ConfigMap>::namespaced(client.clone(), "kube-system")
        .list(&ListParams::default())
        .await;
    assert!(elsewhere.is_err());
    let missing = Api::<Secret>::namespaced(client.clone(), "default")
        .get("mine")
        .await
        .unwrap_err();
    assert!(matches!(&missing, kube::Error::Api(s) if s.code == 404), "{missing}");
    assert!(may(&client, "get", "secrets", "mine").await);
    assert!(!may(&client, "get", "secrets", "other").await);
    assert!(!may(&client, "delete", "configmaps", "").await);

    // No user grants permissions that they do not have.
    let greedy: ClusterRole = serde_json::from_value(
        json!({"metadata": {"name": "greedy"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]}]}),
    )
    .unwrap();
    let binder = cluster.client_as("binder", &["binders"]);
    let refused = Api::<ClusterRole>::all(binder)
        .create(&params, &greedy)
        .await
        .unwrap_err();
    assert!(
        refused.to_string().contains("cannot create resource \"clusterroles\""),
        "{refused}"
    );

    // The token has an audience; an invalid token is no user.
    let review: TokenReview = serde_json::from_value(json!({"spec": {"token": token}})).unwrap();
    let status = Api::<TokenReview>::all(admin.clone())
        .create(&params, &review)
        .await
        .unwrap()
        .status
        .unwrap();
    assert_eq!(
        status.user.unwrap().username.as_deref(),
        Some("system:serviceaccount:default:default")
    );
    config.auth_info.token = Some("nonsense".to_owned().into());
    let nobody = kube::Client::try_from(config.clone()).unwrap();
    let refused = Api::<Pod>::namespaced(nobody, "default")
        .list(&ListParams::default())
        .await
        .unwrap_err();
    assert!(matches!(&refused, kube::Error::Api(s) if s.code == 401), "{refused}");

    // Client certificates contain user and groups.
    let kubeconfig = cluster.kubeconfig_for("jane", &["system:masters"]).unwrap();
    let jane = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default())
        .await
        .unwrap();
    let jane = kube::Client::try_from(jane).unwrap();
    assert!(may(&jane, "delete", "nodes", "").await);
}

fn pem(text: &str) -> Vec<u8> {
    use base64::Engine;
    let body: String = text.lines().filter(|l| !l.starts_with("-----")).collect();
    base64::engine::general_purpose::STANDARD.decode(body).unwrap()
}
