//! The network of pods, as programs meet it that know nothing of where they run.

mod support;

use embedded_kube::Cluster;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use support::kubectl::{Kubectl, kubectls};
use support::{eventually, is};

/// Says to everybody who connects to a port of all its addresses who that is.
fn server(address: &str, port: u16) -> Value {
    let script = format!(
        r#"my $s = IO::Socket::IP->new(LocalHost => "{address}", LocalPort => {port}, Listen => 9, ReuseAddr => 1, V6Only => 0)
            or die "cannot listen: $!";
        while (1) {{ my $c = $s->accept or next; print $c `hostname -s`; print $c $c->peerhost; close $c }}"#
    );
    json!({"name": "server", "image": "busybox", "command": ["perl", "-MIO::Socket::IP", "-e", script],
        "ports": [{"name": "talk", "containerPort": port}], "readinessProbe": {"tcpSocket": {"port": "talk"}, "periodSeconds": 1}})
}

fn pod(name: &str, containers: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": containers}})
}

/// The words that a server answers with, or what went wrong.
async fn ask(kubectl: &Kubectl, pod: &str, target: &str) -> Vec<String> {
    let script = r#"my $c = IO::Socket::IP->new(PeerAddr => $ARGV[0], Timeout => 1) or die "no: $@"; print <$c>"#;
    let exec = format!("exec {pod} -- perl -MIO::Socket::IP -e");
    let (_, answer) = kubectl.try_with(&exec, &[script, target], "").await;
    answer.split_whitespace().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_have_a_network_of_their_own() {
    let cluster = Cluster::builder().nodes(2).start().await.unwrap();
    let kubectl = Kubectl::new(&kubectls()[0], &cluster.kubeconfig_yaml(), "default");
    // Given a pod that serves the same low port on all its addresses as another one does, both as ordinary users, and a
    // sidecar in the first
    let sidecar = json!({"name": "sidecar", "image": "busybox", "command": ["sleep", "1000"]});
    let mut one = pod("one", json!([server("0.0.0.0", 80), sidecar]));
    let mut two = pod("two", json!([server("::", 80)]));
    for pod in [&mut one, &mut two] {
        pod["spec"]["securityContext"] = json!({"runAsUser": 1000});
        kubectl.with("apply -f -", &[], &pod.to_string()).await;
    }
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"type": "NodePort", "selector": {"app": "one"}, "ports": [{"port": 8080, "targetPort": "talk"}]}});
    kubectl.with("apply -f -", &[], &service.to_string()).await;
    kubectl
        .run("wait --for=condition=Ready pod/one pod/two --timeout=90s")
        .await;
    let get = async |what: &str| kubectl.run(&format!("get {what}")).await;
    let first = get("pod one -o jsonpath={.status.podIP}").await;
    let second = get("pod two -o jsonpath={.status.podIP}").await;
    // Then each reaches the other, by address and through the service by name, and is seen with its own address
    let answer = |pod: &str, seen: &str| vec![pod.to_owned(), seen.to_owned()];
    eventually("the service leads to the pod", || async {
        is(ask(&kubectl, "two", "web:8080").await, answer("one", &second))
    })
    .await;
    let named = ask(&kubectl, "one -c server", &format!("{second}:80")).await;
    assert_eq!(named[0], "two");
    assert!(named[1].ends_with(&first), "{named:?}");
    // And `localhost` is the pod: its sidecar reaches the server there
    assert_eq!(
        ask(&kubectl, "one -c sidecar", "localhost:80").await,
        answer("one", "127.0.0.1")
    );
    assert_eq!(ask(&kubectl, "two", "[::1]:80").await, answer("two", "::1"));
    // And the API server is where every client in a pod looks for it
    let api = "perl -MIO::Socket::IP -e 'for (\"kubernetes.default.svc:443\", \"$ENV{KUBERNETES_SERVICE_HOST}:$ENV{KUBERNETES_SERVICE_PORT}\") \
               { IO::Socket::IP->new(PeerAddr => $_, Timeout => 5) or die \"$_: $@\" } print \"both\"'";
    assert_eq!(kubectl.shell("two", api).await, "both");
    // And nothing outside of the cluster can be reached, unless that is asked for
    for target in ["host.cluster.internal:80", "203.0.113.7:80"] {
        assert_eq!(ask(&kubectl, "two", target).await[0], "no:", "{target}");
    }
    // And the node port serves on the loopback address
    let port = get("service web -o jsonpath={.spec.ports[0].nodePort}").await;
    eventually("the node port leads to the pod", || async {
        let mut text = String::new();
        match tokio::net::TcpStream::connect(format!("127.0.0.1:{port}")).await {
            Ok(mut connection) => drop(connection.read_to_string(&mut text).await),
            Err(error) => text = error.to_string(),
        }
        is(text.split_whitespace().next().unwrap_or_default(), "one").map(drop)
    })
    .await;
    // When both are cut off from each other, then others still reach them, until the cut is undone
    let faults = cluster.faults().unwrap();
    let address = |pod| faults.address("default", pod).unwrap();
    faults.cut(address("one"), address("two")).await.unwrap();
    let refused = ask(&kubectl, "two", "web:8080").await;
    assert_eq!(refused[0], "no:", "{refused:?}");
    let guest = cluster.guest().await.unwrap();
    let seen = guest.address().to_string();
    let target = format!("{first}:80");
    let asked = guest.spawn(async move {
        let mut text = String::new();
        let mut connection = tokio::net::TcpStream::connect(target).await?;
        connection.read_to_string(&mut text).await.map(|_| text)
    });
    assert!(
        asked.await.unwrap().unwrap().ends_with(&seen),
        "a guest has an address of its own"
    );
    faults.heal().await.unwrap();
    assert_eq!(ask(&kubectl, "two", "web:8080").await, answer("one", &second));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_in_pods_may_be_the_users_that_this_process_may_be() {
    let cluster = Cluster::builder().nodes(1).start().await.unwrap();
    let kubectl = Kubectl::new(&kubectls()[0], &cluster.kubeconfig_yaml(), "default");
    // When root in a pod gives a file away and becomes somebody else
    let script = "touch /tmp/file; chown 7:7 /tmp/file && exec setpriv --reuid 7 --regid 7 --clear-groups id -u";
    let mut pod = pod(
        "root",
        json!([{"name": "c", "image": "busybox", "command": ["sh", "-c", script]}]),
    );
    pod["spec"]["restartPolicy"] = json!("Never");
    kubectl.with("apply -f -", &[], &pod.to_string()).await;
    eventually("the pod ends", || async {
        let phase = kubectl.run("get pod root -o jsonpath={.status.phase}").await;
        is(matches!(&*phase, "Succeeded" | "Failed"), true)
    })
    .await;
    // Then that works where this process has IDs for it: as root, or with subordinate IDs; elsewhere the user is told
    let seen = kubectl.run("logs root").await;
    match embedded_kube::several_users_hint() {
        None => assert_eq!(seen.trim(), "7"),
        Some(hint) => {
            assert!(seen.contains("Invalid argument"), "{seen}");
            assert!(hint.contains("--add-subuids"), "{hint}");
        }
    }
    cluster.stop().await;
}
