//! How lists and maps of built-in kinds merge: the facts behind strategic merge patch, server-side apply and the
//! `x-kubernetes-*` marks in OpenAPI.
//!
//! One table, a line a type. After a field's name: `[key]` is a list merged by that key (several keys: patches use the
//! first, apply all; `:` gives a key's default), `(key)` the same for apply only, `*` after it says that an item is one value, `{set}` a list of distinct values,
//! `{}` a map that apply treats as one value, `!retain` and `!replace` are patch strategies, `!nopatch` means that
//! patches replace the list. `=Type` is the type below. What is not in the table: maps merge field by field, lists are
//! one value.

use std::collections::HashMap;
use std::sync::OnceLock;

const TABLE: &str = "
ObjectMeta: finalizers{set} ownerReferences[uid]*
NodeAffinity: requiredDuringSchedulingIgnoredDuringExecution{}
Affinity: nodeAffinity=NodeAffinity
EnvVarSource: configMapKeyRef{} fieldRef{} fileKeyRef{} resourceFieldRef{} secretKeyRef{}
EnvVar: valueFrom=EnvVarSource
ResourceRequirements: claims(name)
Container: env[name]=EnvVar ports[containerPort+protocol:TCP] resources=ResourceRequirements volumeDevices[devicePath] volumeMounts[mountPath]
EphemeralContainer: env[name]=EnvVar ports[containerPort+protocol:TCP] resources=ResourceRequirements volumeDevices[devicePath] volumeMounts[mountPath]
TopologySpreadConstraint: labelSelector{}
SecretRefSource: secretRef{}
CSIVolumeSource: nodePublishSecretRef{}
PersistentVolumeClaimSpec: dataSource{} selector{}
PersistentVolumeClaimTemplate: metadata=ObjectMeta spec=PersistentVolumeClaimSpec
EphemeralVolumeSource: volumeClaimTemplate=PersistentVolumeClaimTemplate
Volume: cephfs=SecretRefSource cinder=SecretRefSource csi=CSIVolumeSource ephemeral=EphemeralVolumeSource flexVolume=SecretRefSource iscsi=SecretRefSource rbd=SecretRefSource scaleIO=SecretRefSource storageos=SecretRefSource
PodSpec: affinity=Affinity containers[name]=Container ephemeralContainers[name]=EphemeralContainer hostAliases[ip] imagePullSecrets[name]* initContainers[name]=Container nodeSelector{} resourceClaims[name]!retain resources=ResourceRequirements schedulingGates[name] topologySpreadConstraints[topologyKey+whenUnsatisfiable]=TopologySpreadConstraint volumes[name]!retain=Volume
PodStatus: conditions[type] hostIPs[ip]!patchonly podIPs[ip] resourceClaimStatuses[name]!retain
Pod: metadata=ObjectMeta spec=PodSpec status=PodStatus
ServiceSpec: ports[port+protocol:TCP] selector{}
ServiceStatus: conditions[type]
Service: metadata=ObjectMeta spec=ServiceSpec status=ServiceStatus
PersistentVolumeClaimStatus: conditions[type]
PersistentVolumeClaim: metadata=ObjectMeta spec=PersistentVolumeClaimSpec status=PersistentVolumeClaimStatus
CSIPersistentVolumeSource: controllerExpandSecretRef{} controllerPublishSecretRef{} nodeExpandSecretRef{} nodePublishSecretRef{} nodeStageSecretRef{}
VolumeNodeAffinity: required{}
PersistentVolumeSpec: cephfs=SecretRefSource cinder=SecretRefSource claimRef{} csi=CSIPersistentVolumeSource flexVolume=SecretRefSource iscsi=SecretRefSource nodeAffinity=VolumeNodeAffinity rbd=SecretRefSource scaleIO=SecretRefSource storageos=SecretRefSource
PersistentVolume: metadata=ObjectMeta spec=PersistentVolumeSpec
NodeSpec: podCIDRs{set}
NodeStatus: addresses[type] conditions[type]
Node: metadata=ObjectMeta spec=NodeSpec status=NodeStatus
Event: metadata=ObjectMeta involvedObject{} regarding{} related{}
NamespaceStatus: conditions[type]
Namespace: metadata=ObjectMeta status=NamespaceStatus
ServiceAccount: metadata=ObjectMeta secrets[name]*
RoleBinding: metadata=ObjectMeta roleRef{}
ClusterRoleBinding: metadata=ObjectMeta roleRef{}
PodTemplateSpec: metadata=ObjectMeta spec=PodSpec
StatefulSetSpec: selector{} template=PodTemplateSpec
StatefulSetStatus: conditions[type]
StatefulSet: metadata=ObjectMeta spec=StatefulSetSpec status=StatefulSetStatus
NetworkPolicySpec: podSelector{}
NetworkPolicy: metadata=ObjectMeta spec=NetworkPolicySpec
PodDisruptionBudgetSpec: selector{}!replace
PodDisruptionBudgetStatus: conditions[type]
PodDisruptionBudget: metadata=ObjectMeta spec=PodDisruptionBudgetSpec status=PodDisruptionBudgetStatus
CustomResourceDefinitionStatus: conditions(type)
CustomResourceDefinition: metadata=ObjectMeta status=CustomResourceDefinitionStatus
Plain: metadata=ObjectMeta
";

/// The table's entry for one field.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Field {
    /// The keys of a keyed list, each with its default.
    pub(crate) keys: Vec<(&'static str, Option<&'static str>)>,
    /// A list of distinct values.
    pub(crate) set: bool,
    /// A map that apply treats as one value.
    pub(crate) atomic: bool,
    /// Patches replace the value whole.
    pub(crate) replace: bool,
    /// Patches may carry `$retainKeys`.
    pub(crate) retain_keys: bool,
    /// Only patches merge the list, or only apply does.
    pub(crate) patch_only: bool,
    pub(crate) apply_only: bool,
    /// Apply treats each item of the list as one value.
    pub(crate) atomic_items: bool,
    /// The type below, for [`Type::of`].
    pub(crate) child: Option<&'static str>,
}

/// A type of the table; types that are not in it have no special fields.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Type(Option<&'static HashMap<&'static str, Field>>);

impl Type {
    /// The type of a built-in kind, or of a part of one.
    pub(crate) fn of(name: &str) -> Type {
        Type(
            table()
                .get(name)
                .or_else(|| table().get("Plain").filter(|_| !name.is_empty())),
        )
    }

    /// The type below a field, without the fallback to a plain object.
    fn below(name: Option<&str>) -> Type {
        Type(name.and_then(|name| table().get(name)))
    }

    /// The entry of a field, and the type of its value (or of its items).
    pub(crate) fn field(self, name: &str) -> (Option<&'static Field>, Type) {
        let field = self.0.and_then(|fields| fields.get(name));
        (field, Type::below(field.and_then(|f| f.child)))
    }

    /// All special fields, for OpenAPI.
    pub(crate) fn fields(self) -> impl Iterator<Item = (&'static str, &'static Field)> {
        self.0.into_iter().flatten().map(|(name, field)| (*name, field))
    }

    /// Whether the table has a type of exactly this name.
    pub(crate) fn exact(name: &str) -> Type {
        Type(table().get(name))
    }
}

fn table() -> &'static HashMap<&'static str, HashMap<&'static str, Field>> {
    static PARSED: OnceLock<HashMap<&'static str, HashMap<&'static str, Field>>> = OnceLock::new();
    PARSED.get_or_init(|| {
        let lines = TABLE.lines().filter_map(|line| line.split_once(": "));
        lines
            .map(|(name, fields)| (name, fields.split(' ').map(parse).collect()))
            .collect()
    })
}

fn parse(text: &'static str) -> (&'static str, Field) {
    let (text, child) = match text.split_once('=') {
        Some((text, child)) => (text, Some(child)),
        None => (text, None),
    };
    let end = text.find(['[', '(', '{', '!']).unwrap_or(text.len());
    let (name, marks) = text.split_at(end);
    let mut field = Field {
        set: marks.contains("{set}"),
        atomic: marks.contains("{}"),
        replace: marks.contains("!replace"),
        retain_keys: marks.contains("!retain"),
        patch_only: marks.contains("!patchonly"),
        apply_only: marks.starts_with('('),
        atomic_items: marks.ends_with('*'),
        child,
        ..Field::default()
    };
    if marks.starts_with(['[', '(']) {
        let keys = marks[1..].split([']', ')']).next().unwrap_or_default();
        field.keys = keys
            .split('+')
            .map(|key| {
                key.split_once(':')
                    .map_or((key, None), |(key, default)| (key, Some(default)))
            })
            .collect();
    }
    (name, field)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_reads_as_written() {
        let (spec, pod_spec) = Type::of("Pod").field("spec");
        assert_eq!(spec.unwrap().child, Some("PodSpec"));
        let (containers, container) = pod_spec.field("containers");
        assert_eq!(containers.unwrap().keys, [("name", None)]);
        let (ports, _) = container.field("ports");
        assert_eq!(
            ports.unwrap().keys,
            [("containerPort", None), ("protocol", Some("TCP"))]
        );
        assert!(pod_spec.field("volumes").0.unwrap().retain_keys);
        assert!(pod_spec.field("nodeSelector").0.unwrap().atomic);
        assert!(Type::of("Lease").field("metadata").1.field("finalizers").0.unwrap().set);
    }

    #[test]
    fn every_type_below_is_in_the_table() {
        for (name, fields) in table() {
            for field in fields.values() {
                if let Some(child) = field.child {
                    assert!(table().contains_key(child), "{name} names {child}");
                }
            }
        }
    }
}
