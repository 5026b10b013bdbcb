use super::*;

pub(crate) fn sample() -> Directory {
    let directory = Directory::new();
    for text in [
        r#"{"metadata":{"name":"etcd","namespace":"db"},"spec":{"clusterIP":"None","publishNotReadyAddresses":true,
            "selector":{"app":"etcd"},"ports":[{"name":"peer","port":2380}]}}"#,
        r#"{"metadata":{"name":"etcd-client","namespace":"db"},"spec":{"clusterIP":"10.7.128.20",
            "selector":{"app":"etcd"},"ports":[{"name":"client","port":2379,"targetPort":"client"}]}}"#,
        r#"{"metadata":{"name":"elsewhere","namespace":"db"},"spec":{"type":"ExternalName","externalName":"x.y"}}"#,
    ] {
        directory.service(&serde_json::from_str(text).unwrap());
    }
    for (number, ready) in [(1, "True"), (2, "False")] {
        let pod = serde_json::json!({
            "metadata": {"name": format!("etcd-{number}"), "namespace": "db", "uid": format!("u{number}"), "labels": {"app": "etcd"}},
            "spec": {"hostname": format!("etcd-{number}"), "subdomain": "etcd", "containers":
                [{"name": "etcd", "ports": [{"name": "client", "containerPort": 2379}]}]},
            "status": {"podIP": format!("10.7.128.{number}"), "conditions": [{"type": "Ready", "status": ready}]},
        });
        directory.pod(&serde_json::from_value(pod).unwrap());
    }
    directory
}

#[test]
fn names_mean_what_kubernetes_says() {
    let directory = sample();
    let (one, two) = (Ipv4Addr::new(10, 7, 128, 1), Ipv4Addr::new(10, 7, 128, 2));
    let addresses = Meaning::Addresses;
    let cases = [
        ("etcd-1.etcd.db.svc.cluster.local", addresses(vec![one])),
        ("etcd.db.svc.cluster.local", addresses(vec![one, two])),
        (
            "etcd-client.db.svc.cluster.local",
            addresses(vec![Ipv4Addr::new(10, 7, 128, 20)]),
        ),
        ("10-7-128-2.db.pod.cluster.local", addresses(vec![two])),
        ("elsewhere.db.svc.cluster.local", Meaning::Alias("x.y".into())),
        ("etcd-9.etcd.db.svc.cluster.local", Meaning::Unknown),
        ("example.com", Meaning::Unknown),
        ("cluster.local", Meaning::Unknown),
        (
            "_client._tcp.etcd-client.db.svc.cluster.local",
            Meaning::Services(vec![(2379, "etcd-client.db.svc.cluster.local".into())]),
        ),
        (
            "_peer._tcp.etcd.db.svc.cluster.local",
            Meaning::Services(vec![
                (2380, "etcd-1.etcd.db.svc.cluster.local".into()),
                (2380, "etcd-2.etcd.db.svc.cluster.local".into()),
            ]),
        ),
    ];
    for (name, meaning) in cases {
        assert_eq!(directory.lookup(name), meaning, "{name}");
    }
    assert_eq!(directory.reverse(two), ["etcd-2.etcd.db.svc.cluster.local"]);
    assert_eq!(directory.reverse(Ipv4Addr::LOCALHOST), ["localhost"]);
}

#[test]
fn only_ready_pods_take_connections() {
    let directory = sample();
    let service = directory
        .services(Some("db"))
        .into_iter()
        .find(|s| s.name == "etcd-client")
        .unwrap();
    assert_eq!(
        directory.backends(&service, &service.ports[0]),
        [(Ipv4Addr::new(10, 7, 128, 1), 2379)]
    );
}

#[test]
fn an_address_counts_from_the_moment_it_is_given() {
    let directory = sample();
    let pod = serde_json::json!({"metadata": {"name": "etcd-3", "namespace": "db", "uid": "u3", "labels": {"app": "etcd"}},
        "spec": {"hostname": "etcd-3", "subdomain": "etcd", "containers": []}});
    let pod: Pod = serde_json::from_value(pod).unwrap();
    directory.pod(&pod);
    let changes = directory.changes();
    directory.pod_address("u3", Ipv4Addr::new(10, 7, 128, 3));
    directory.pod(&pod);
    assert!(changes.has_changed().unwrap());
    let name = "etcd-3.etcd.db.svc.cluster.local";
    assert_eq!(
        directory.lookup(name),
        Meaning::Addresses(vec![Ipv4Addr::new(10, 7, 128, 3)])
    );
    directory.pod_gone("u3");
    assert_eq!(directory.lookup(name), Meaning::Unknown);
}

#[test]
fn a_service_without_selector_uses_its_slices() {
    let directory = Directory::new();
    directory.service(
        &serde_json::from_str(
            r#"{"metadata":{"name":"kubernetes","namespace":"default"},"spec":{"clusterIP":"10.7.128.1","ports":[{"name":"https","port":443,"targetPort":6443}]}}"#,
        )
        .unwrap(),
    );
    directory.slice(
        &serde_json::from_str(
            r#"{"metadata":{"name":"kubernetes","namespace":"default","uid":"s","labels":{"kubernetes.io/service-name":"kubernetes"}},
            "addressType":"IPv4","endpoints":[{"addresses":["10.7.0.2"]}],"ports":[{"name":"https","port":7443}]}"#,
        )
        .unwrap(),
    );
    let service = &directory.services(None)[0];
    assert_eq!(
        directory.backends(service, &service.ports[0]),
        [(Ipv4Addr::new(10, 7, 0, 2), 7443)]
    );
}
