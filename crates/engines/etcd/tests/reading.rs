//! Whatever the schema accepts, the types can read: one object that cannot be read would blind a watch to all others.

use serde_json::{Map, Value, json};
use stateward_etcd::api::{EtcdBackup, EtcdCluster, EtcdRestore, crds};

/// Seeded, so that a failure can be seen again.
struct Rng(u64);

impl Rng {
    fn rollout(&mut self, sides: u64) -> u64 {
        // SplitMix64
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % sides
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[usize::try_from(self.rollout(of.len() as u64)).expect("small")]
    }
}

fn value(schema: &Value, rng: &mut Rng) -> Value {
    if let Some(words) = schema["enum"].as_array() {
        return rng.pick(words).clone();
    }
    if schema["x-kubernetes-int-or-string"] == json!(true) {
        return rng
            .pick(&[
                json!(0),
                json!(-1),
                json!(1_073_741_824),
                json!(""),
                json!("8Gi"),
                json!("nonsense"),
            ])
            .clone();
    }
    match (schema["type"].as_str(), schema["format"].as_str()) {
        (Some("string"), Some("date-time")) => json!("2026-11-15T03:00:00.25+01:00"),
        (Some("string"), _) => rng
            .pick(&[json!(""), json!("a"), json!("2026-13-45"), json!("ünï ☃ \n")])
            .clone(),
        (Some("boolean"), _) => json!(rng.rollout(2) == 0),
        (Some("integer"), format) => {
            let (least, most) = if format == Some("int32") {
                (i64::from(i32::MIN), i64::from(i32::MAX))
            } else {
                (i64::MIN, i64::MAX)
            };
            let bound = |keyword: &str, free: i64| schema[keyword].as_f64().map_or(free, |bound| bound as i64);
            let (least, most) = (bound("minimum", least), bound("maximum", most));
            rng.pick(&[
                json!(least),
                json!(most),
                json!(0.clamp(least, most)),
                json!(3.clamp(least, most)),
            ])
            .clone()
        }
        (Some("array"), _) => (0..rng.rollout(3)).map(|_| value(&schema["items"], rng)).collect(),
        (Some("object"), _) => object(schema, rng),
        other => panic!("no such type: {other:?} in {schema}"),
    }
}

fn object(schema: &Value, rng: &mut Rng) -> Value {
    let mut fields = Map::new();
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        if required.contains(&json!(name)) || rng.rollout(3) > 0 {
            fields.insert(name.clone(), value(property, rng));
        }
    }
    if schema["additionalProperties"].is_object() {
        for _ in 0..rng.rollout(3) {
            fields.insert(
                format!("key-{}", rng.rollout(9)),
                value(&schema["additionalProperties"], rng),
            );
        }
    }
    Value::Object(fields)
}

fn read(kind: &str, value: &Value) -> Result<Value, serde_json::Error> {
    match kind {
        "EtcdCluster" => serde_json::to_value(serde_json::from_value::<EtcdCluster>(value.clone())?),
        "EtcdBackup" => serde_json::to_value(serde_json::from_value::<EtcdBackup>(value.clone())?),
        "EtcdRestore" => serde_json::to_value(serde_json::from_value::<EtcdRestore>(value.clone())?),
        other => panic!("unknown kind {other}"),
    }
}

#[test]
fn whatever_the_schema_accepts_can_be_read() {
    for crd in crds::all() {
        let kind = crd.spec.names.kind.clone();
        let crd = serde_json::to_value(crd).expect("JSON");
        let mut schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
        schema["properties"]
            .as_object_mut()
            .expect("properties")
            .remove("metadata");
        for seed in 0..200 {
            let mut value = object(&schema, &mut Rng(seed));
            value["metadata"] = json!({"name": "c", "namespace": "ns"});
            value["apiVersion"] = json!("etcd.database.coreos.com/v1beta2");
            value["kind"] = json!(kind);
            let once = read(&kind, &value).unwrap_or_else(|error| panic!("{kind} seed {seed}: {error}\n{value:#}"));
            let twice = read(&kind, &once).unwrap_or_else(|error| panic!("{kind} seed {seed}: {error}\n{once:#}"));
            assert_eq!(once, twice, "{kind} seed {seed}: writing is not stable");
            if let Ok(cluster) = serde_json::from_value::<EtcdCluster>(value) {
                // nothing here may panic, whatever the spec says
                let _ = (
                    cluster.problems(),
                    cluster.claim_spec(),
                    cluster.version(),
                    cluster.tls().clients(),
                );
            }
        }
    }
}
