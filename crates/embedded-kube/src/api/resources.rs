//! The table of what is served: built-in kinds, and the kinds that CustomResourceDefinitions add.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::crd::CustomKind;
use super::openapi::Documents;
use crate::schema::builtin::{self, Decoded};

/// Converts an object to its Kubernetes type: drops unknown fields, rejects wrong types.
pub(crate) type Normalize = fn(&Value) -> Result<Decoded, String>;

/// The special properties of a kind, beyond the table.
#[derive(Debug, Clone)]
pub(crate) enum Rules {
    /// A built-in kind, decoded through its Kubernetes type.
    BuiltIn(Normalize),
    /// A kind from a CustomResourceDefinition.
    Custom(Arc<CustomKind>),
    /// Served immediately and never stored (reviews, bindings).
    Ephemeral,
}

/// One resource in one version.
#[derive(Debug, Clone)]
pub(crate) struct Resource {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) plural: String,
    pub(crate) singular: String,
    pub(crate) kind: String,
    pub(crate) list_kind: String,
    pub(crate) namespaced: bool,
    pub(crate) short_names: Vec<String>,
    pub(crate) categories: Vec<String>,
    /// The first part of its storage keys; the same for all versions of a kind.
    pub(crate) storage: String,
    /// Served subresources.
    pub(crate) subresources: Vec<Subresource>,
    /// Whether `metadata.generation` counts changes of the specification.
    pub(crate) generation: bool,
    pub(crate) rules: Rules,
}

/// A subresource as discovery lists it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Subresource {
    pub(crate) name: &'static str,
    pub(crate) kind: &'static str,
    /// Group and version of its kind where they differ from the resource's.
    pub(crate) group_version: Option<(&'static str, &'static str)>,
    pub(crate) verbs: &'static [&'static str],
}

const READ_WRITE: &[&str] = &["get", "patch", "update"];
const VERBS: &[&str] = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];

impl Resource {
    pub(crate) fn api_version(&self) -> String {
        match self.group.as_str() {
            "" => self.version.clone(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// The name error messages use: `pods`, `statefulsets.apps`.
    pub(crate) fn qualified(&self) -> String {
        match self.group.as_str() {
            "" => self.plural.clone(),
            group => format!("{}.{group}", self.plural),
        }
    }

    /// The name validation errors use: `Pod`, `StatefulSet.apps`.
    pub(crate) fn qualified_kind(&self) -> String {
        match self.group.as_str() {
            "" => self.kind.clone(),
            group => format!("{}.{group}", self.kind),
        }
    }

    pub(crate) fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    pub(crate) fn has_status(&self) -> bool {
        self.subresource("status").is_some()
    }

    pub(crate) fn custom(&self) -> Option<&Arc<CustomKind>> {
        match &self.rules {
            Rules::Custom(kind) => Some(kind),
            _ => None,
        }
    }

    pub(crate) fn is(&self, group: &str, plural: &str) -> bool {
        self.group == group && self.plural == plural
    }

    pub(crate) fn verbs(&self) -> &'static [&'static str] {
        match (&self.rules, self.plural.as_str()) {
            (Rules::Ephemeral, _) => &["create"],
            // As in Kubernetes: services cannot be deleted as a collection.
            (_, "namespaces") => &["create", "delete", "get", "list", "patch", "update", "watch"],
            _ => VERBS,
        }
    }
}

/// Builds one row of the table.
struct Row(Resource);

impl Row {
    fn new(group: &str, version: &str, plural: &str, kind: &str, namespaced: bool, rules: Rules) -> Self {
        let storage = if group.is_empty() {
            plural.to_owned()
        } else {
            format!("{plural}.{group}")
        };
        Self(Resource {
            group: group.into(),
            version: version.into(),
            plural: plural.into(),
            singular: kind.to_lowercase(),
            kind: kind.into(),
            list_kind: format!("{kind}List"),
            namespaced,
            short_names: Vec::new(),
            categories: Vec::new(),
            storage,
            subresources: Vec::new(),
            generation: false,
            rules,
        })
    }

    fn short(mut self, names: &[&str]) -> Self {
        self.0.short_names = names.iter().map(|n| n.to_string()).collect();
        self
    }

    fn in_all(mut self) -> Self {
        self.0.categories.push("all".into());
        self
    }

    fn generation(mut self) -> Self {
        self.0.generation = true;
        self
    }

    fn status(self) -> Self {
        self.sub("status", "", READ_WRITE)
    }

    fn sub(mut self, name: &'static str, kind: &'static str, verbs: &'static [&'static str]) -> Self {
        self.0.subresources.push(Subresource {
            name,
            kind,
            group_version: None,
            verbs,
        });
        self
    }

    fn sub_of(
        mut self,
        name: &'static str,
        kind: &'static str,
        group_version: (&'static str, &'static str),
        verbs: &'static [&'static str],
    ) -> Self {
        self.0.subresources.push(Subresource {
            name,
            kind,
            group_version: Some(group_version),
            verbs,
        });
        self
    }

    fn stored_as(mut self, storage: &str) -> Self {
        self.0.storage = storage.into();
        self
    }
}

/// The `scale` subresource, as StatefulSets and custom kinds offer it.
pub(crate) const SCALE: Subresource = Subresource {
    name: "scale",
    kind: "Scale",
    group_version: Some(("autoscaling", "v1")),
    verbs: READ_WRITE,
};
/// The `status` subresource.
pub(crate) const STATUS: Subresource = Subresource {
    name: "status",
    kind: "",
    group_version: None,
    verbs: READ_WRITE,
};

/// The built-in kinds.
pub(crate) fn built_in() -> Vec<Resource> {
    use k8s_openapi::api::{
        apps::v1 as apps, coordination::v1 as coordination, core::v1 as core, discovery::v1 as discovery,
        networking::v1 as networking, policy::v1 as policy, rbac::v1 as rbac, scheduling::v1 as scheduling,
        storage::v1 as storage,
    };
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as extensions;
    const AUTH: &str = "authorization.k8s.io";
    const RBAC: &str = "rbac.authorization.k8s.io";
    let of = Row::new;
    macro_rules! stored {
        ($group:expr, $plural:expr, $kind:expr, $scope:expr, $type:ty) => {
            of(
                $group,
                "v1",
                $plural,
                $kind,
                $scope,
                Rules::BuiltIn(builtin::decode::<$type>),
            )
        };
    }
    let review =
        |group: &str, plural: &str, kind: &str, scope: bool| of(group, "v1", plural, kind, scope, Rules::Ephemeral);
    const NS: bool = true;
    const CLUSTER: bool = false;
    const STREAM: &[&str] = &["create", "get"];
    let rows = vec![
        review("", "bindings", "Binding", NS),
        stored!("", "configmaps", "ConfigMap", NS, core::ConfigMap).short(&["cm"]),
        stored!("", "endpoints", "Endpoints", NS, core::Endpoints).short(&["ep"]),
        stored!("", "events", "Event", NS, core::Event).short(&["ev"]),
        stored!("", "namespaces", "Namespace", CLUSTER, core::Namespace)
            .short(&["ns"])
            .sub("finalize", "Namespace", &["update"])
            .status(),
        stored!("", "nodes", "Node", CLUSTER, core::Node)
            .short(&["no"])
            .status(),
        stored!(
            "",
            "persistentvolumeclaims",
            "PersistentVolumeClaim",
            NS,
            core::PersistentVolumeClaim
        )
        .short(&["pvc"])
        .status(),
        stored!(
            "",
            "persistentvolumes",
            "PersistentVolume",
            CLUSTER,
            core::PersistentVolume
        )
        .short(&["pv"])
        .status(),
        stored!("", "pods", "Pod", NS, core::Pod)
            .short(&["po"])
            .in_all()
            .generation()
            .sub("attach", "PodAttachOptions", STREAM)
            .sub("binding", "Binding", &["create"])
            .sub_of("eviction", "Eviction", ("policy", "v1"), &["create"])
            .sub("exec", "PodExecOptions", STREAM)
            .sub("log", "Pod", &["get"])
            .sub("portforward", "PodPortForwardOptions", STREAM)
            .status(),
        stored!("", "resourcequotas", "ResourceQuota", NS, core::ResourceQuota)
            .short(&["quota"])
            .status(),
        stored!("", "secrets", "Secret", NS, core::Secret),
        stored!("", "serviceaccounts", "ServiceAccount", NS, core::ServiceAccount)
            .short(&["sa"])
            .sub_of("token", "TokenRequest", ("authentication.k8s.io", "v1"), &["create"]),
        stored!("", "services", "Service", NS, core::Service)
            .short(&["svc"])
            .in_all()
            .status(),
        stored!(
            "apps",
            "controllerrevisions",
            "ControllerRevision",
            NS,
            apps::ControllerRevision
        ),
        stored!("apps", "statefulsets", "StatefulSet", NS, apps::StatefulSet)
            .short(&["sts"])
            .in_all()
            .generation()
            .sub_of("scale", "Scale", ("autoscaling", "v1"), READ_WRITE)
            .status(),
        review(
            "authentication.k8s.io",
            "selfsubjectreviews",
            "SelfSubjectReview",
            CLUSTER,
        ),
        review("authentication.k8s.io", "tokenreviews", "TokenReview", CLUSTER),
        review(AUTH, "localsubjectaccessreviews", "LocalSubjectAccessReview", NS),
        review(AUTH, "selfsubjectaccessreviews", "SelfSubjectAccessReview", CLUSTER),
        review(AUTH, "selfsubjectrulesreviews", "SelfSubjectRulesReview", CLUSTER),
        review(AUTH, "subjectaccessreviews", "SubjectAccessReview", CLUSTER),
        stored!("coordination.k8s.io", "leases", "Lease", NS, coordination::Lease),
        stored!(
            "discovery.k8s.io",
            "endpointslices",
            "EndpointSlice",
            NS,
            discovery::EndpointSlice
        ),
        // One store for both event APIs, kept in the core shape (see `events`).
        stored!("events.k8s.io", "events", "Event", NS, core::Event)
            .short(&["ev"])
            .stored_as("events"),
        // Stored, and not enforced: nothing is cut off by it.
        stored!(
            "networking.k8s.io",
            "networkpolicies",
            "NetworkPolicy",
            NS,
            networking::NetworkPolicy
        )
        .short(&["netpol"])
        .generation(),
        stored!(
            "policy",
            "poddisruptionbudgets",
            "PodDisruptionBudget",
            NS,
            policy::PodDisruptionBudget
        )
        .short(&["pdb"])
        .generation()
        .status(),
        stored!(
            RBAC,
            "clusterrolebindings",
            "ClusterRoleBinding",
            CLUSTER,
            rbac::ClusterRoleBinding
        ),
        stored!(RBAC, "clusterroles", "ClusterRole", CLUSTER, rbac::ClusterRole),
        stored!(RBAC, "rolebindings", "RoleBinding", NS, rbac::RoleBinding),
        stored!(RBAC, "roles", "Role", NS, rbac::Role),
        stored!(
            "scheduling.k8s.io",
            "priorityclasses",
            "PriorityClass",
            CLUSTER,
            scheduling::PriorityClass
        )
        .short(&["pc"])
        .generation(),
        stored!(
            "storage.k8s.io",
            "storageclasses",
            "StorageClass",
            CLUSTER,
            storage::StorageClass
        )
        .short(&["sc"]),
        stored!(
            "storage.k8s.io",
            "volumeattachments",
            "VolumeAttachment",
            CLUSTER,
            storage::VolumeAttachment
        )
        .status(),
        stored!(
            "apiextensions.k8s.io",
            "customresourcedefinitions",
            "CustomResourceDefinition",
            CLUSTER,
            extensions::CustomResourceDefinition
        )
        .short(&["crd", "crds"])
        .generation()
        .status(),
    ];
    rows.into_iter()
        .map(|Row(mut resource)| {
            if resource.plural == "customresourcedefinitions" {
                resource.categories.push("api-extensions".into());
            }
            if resource.plural == "endpoints" {
                resource.singular = "endpoints".into();
                resource.list_kind = "EndpointsList".into();
            }
            resource
        })
        .collect()
}

/// The versions of a group, the preferred one first, each with its resources by plural name.
pub(crate) type Versions = Vec<(String, BTreeMap<String, Arc<Resource>>)>;

/// Everything served at one moment.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    /// By group, then version (in order of preference), then plural name.
    groups: BTreeMap<String, Versions>,
    /// Its OpenAPI description.
    pub(crate) documents: Documents,
    /// The revision of the definitions that it was built from.
    pub(crate) as_of: u64,
}

impl Registry {
    pub(crate) fn new(resources: impl IntoIterator<Item = Resource>, as_of: u64) -> Self {
        let mut registry = Self {
            as_of,
            ..Self::default()
        };
        for resource in resources {
            let versions = registry.groups.entry(resource.group.clone()).or_default();
            let at = match versions.iter().position(|(v, _)| *v == resource.version) {
                Some(at) => at,
                None => {
                    versions.push((resource.version.clone(), BTreeMap::new()));
                    versions.len() - 1
                }
            };
            versions[at].1.insert(resource.plural.clone(), Arc::new(resource));
        }
        for versions in registry.groups.values_mut() {
            versions.sort_by_cached_key(|(version, _)| std::cmp::Reverse(version_priority(version)));
        }
        registry
    }

    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.version(group, version)?.get(plural)
    }

    pub(crate) fn version(&self, group: &str, version: &str) -> Option<&BTreeMap<String, Arc<Resource>>> {
        self.groups
            .get(group)?
            .iter()
            .find(|(v, _)| v == version)
            .map(|(_, resources)| resources)
    }

    /// Any version of a resource, the preferred one first.
    pub(crate) fn any_version(&self, group: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.groups
            .get(group)?
            .iter()
            .find_map(|(_, resources)| resources.get(plural))
    }

    /// Everything that is served, in every version.
    pub(crate) fn resources(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.groups
            .values()
            .flatten()
            .flat_map(|(_, resources)| resources.values())
    }

    /// Groups with their versions, the preferred version first.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (&String, &Versions)> {
        self.groups.iter()
    }
}

/// Kubernetes' order of versions: v2 > v1 > v1beta2 > v1beta1 > v1alpha1 > anything else by name.
pub(crate) fn version_priority(version: &str) -> (u8, u32, u32, std::cmp::Reverse<String>) {
    let name = std::cmp::Reverse(version.to_owned());
    let parsed = version.strip_prefix('v').and_then(|rest| {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let major = rest[..digits].parse().ok()?;
        match &rest[digits..] {
            "" => Some((3, major, 0)),
            tail => {
                let (stage, minor) = tail
                    .strip_prefix("beta")
                    .map(|minor| (2, minor))
                    .or_else(|| tail.strip_prefix("alpha").map(|minor| (1, minor)))?;
                Some((stage, major, minor.parse().ok()?))
            }
        }
    });
    match parsed {
        Some((stage, major, minor)) => (stage, major, minor, name),
        None => (0, 0, 0, name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_as_kubernetes_orders_them() {
        let mut versions = ["foo", "v1alpha1", "v1", "v10", "v2beta1", "v1beta2"];
        versions.sort_by_cached_key(|v| std::cmp::Reverse(version_priority(v)));
        assert_eq!(versions, ["v10", "v1", "v2beta1", "v1beta2", "v1alpha1", "foo"]);
    }
}
