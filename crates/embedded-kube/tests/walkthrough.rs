//! The walk-through of stateful applications, run with every available kubectl, on nodes that run real processes:
//! ordered start and stop, stable names, one claim per pod that outlives it, rolling update, canary by partition, an
//! update that stops at an error, and the everyday commands around them.

mod support;

use std::time::Duration;

use embedded_kube::{Cluster, Image, ImageSource};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use support::kubectl::{Kubectl, kubectls};
use support::{eventually, is};

/// Prints its name, then serves the page of its volume.
const SERVER: &str = r#"
$| = 1; print "started on " . `hostname`;
$SIG{TERM} = sub { exit 0 };
my $s = IO::Socket::INET->new(LocalAddr => "0.0.0.0", LocalPort => 8080, Listen => 9, ReuseAddr => 1) or die $!;
while (1) {
    my $c = $s->accept or next;
    my $line = <$c>;
    print "served $line";
    print $c "HTTP/1.0 200 OK\r\n\r\n" . `cat /usr/share/nginx/html/index.html`;
    close $c;
}
"#;

fn nginx(tag: &str) -> ImageSource {
    ImageSource::One {
        reference: format!("nginx:{tag}"),
        image: Image::host().with_cmd(["perl", "-MIO::Socket::INET", "-e", SERVER]),
    }
}

const MANIFEST: &str = r#"
apiVersion: v1
kind: Service
metadata:
  name: nginx
  labels: {app: nginx}
spec:
  ports:
  - port: 8080
    name: web
  clusterIP: None
  selector: {app: nginx}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: web
spec:
  serviceName: nginx
  replicas: 2
  selector:
    matchLabels: {app: nginx}
  template:
    metadata:
      labels: {app: nginx}
    spec:
      terminationGracePeriodSeconds: 5
      containers:
      - name: nginx
        image: nginx:1.9.1
        ports:
        - containerPort: 8080
          name: web
        readinessProbe:
          tcpSocket: {port: web}
          periodSeconds: 1
        volumeMounts:
        - name: www
          mountPath: /usr/share/nginx/html
  volumeClaimTemplates:
  - metadata:
      name: www
    spec:
      accessModes: [ReadWriteOnce]
      resources:
        requests:
          storage: 1Gi
"#;

const IMAGES: &str = "get pods -l app=nginx -o jsonpath={.items[*].spec.containers[0].image}";

#[tokio::test(flavor = "multi_thread")]
async fn stateful_applications_as_the_books_show_them() {
    let cluster = Cluster::builder()
        .nodes(2)
        .images(nginx("1.9.1"))
        .images(nginx("1.9.2"))
        .start()
        .await
        .unwrap();
    for (number, program) in kubectls().iter().enumerate() {
        let namespace = format!("town-{number}");
        let kubectl = Kubectl::new(program, &cluster.kubeconfig_yaml(), &namespace);
        kubectl.run(&format!("create namespace {namespace}")).await;
        topology(&kubectl).await;
        storage(&kubectl).await;
        updates(&kubectl).await;
        scaling(&kubectl).await;
        everyday(&kubectl).await;
        farewell(&kubectl, &namespace).await;
    }
    cluster.stop().await;
}

async fn done(kubectl: &Kubectl) {
    kubectl.run("rollout status statefulset/web --timeout=90s").await;
}

async fn topology(kubectl: &Kubectl) {
    kubectl.with("apply -f -", &[], MANIFEST).await;
    done(kubectl).await;
    let names = kubectl
        .run("get pods -l app=nginx -o jsonpath={.items[*].metadata.name}")
        .await;
    assert_eq!(names, "web-0 web-1");
    for pod in ["web-0", "web-1"] {
        assert_eq!(kubectl.shell(pod, "hostname").await.trim(), pod);
        let address = kubectl
            .run(&format!("get pod {pod} -o jsonpath={{.status.podIP}}"))
            .await;
        let found = kubectl.shell("web-0", &format!("getent hosts {pod}.nginx")).await;
        assert!(found.starts_with(&address), "{pod} is at {address}, not {found}");
    }
    let table = kubectl.run("get statefulset web").await;
    assert!(table.contains("2/2"), "{table}");
}

/// kubectl looks at a pod by its UID, and only then begins to watch its name: where the StatefulSet has created the next one in
/// between, it would wait for the deletion of that one.
async fn delete_pods(kubectl: &Kubectl, which: &str) {
    let uids = format!("get pods {which} -o jsonpath={{..metadata.uid}}");
    let before = kubectl.run(&uids).await;
    kubectl.run(&format!("delete pod --wait=false {which}")).await;
    eventually("the pods to be gone", || async {
        let (_, now) = kubectl.try_with(&uids, &[], "").await;
        is(before.split(' ').any(|uid| now.contains(uid)), false)
    })
    .await;
}

async fn storage(kubectl: &Kubectl) {
    let claims = "get pvc -l app=nginx -o jsonpath={.items[*].metadata.name}:{.items[*].status.phase}";
    assert_eq!(kubectl.run(claims).await, "www-web-0 www-web-1:Bound Bound");
    for pod in ["web-0", "web-1"] {
        kubectl
            .shell(pod, "echo hello $(hostname) > /usr/share/nginx/html/index.html")
            .await;
    }
    let before = kubectl
        .run("get pods -l app=nginx -o jsonpath={.items[*].metadata.uid}")
        .await;
    delete_pods(kubectl, "-l app=nginx").await;
    eventually("both are back", || async {
        let ready = kubectl
            .run("get statefulset web -o jsonpath={.status.readyReplicas}")
            .await;
        let now = kubectl
            .run("get pods -l app=nginx -o jsonpath={.items[*].metadata.uid}")
            .await;
        let all_new = before.split(' ').all(|uid| !now.contains(uid));
        is((ready.as_str(), all_new), ("2", true))
    })
    .await;
    for pod in ["web-0", "web-1"] {
        let page = kubectl.shell(pod, "cat /usr/share/nginx/html/index.html").await;
        assert_eq!(page.trim(), format!("hello {pod}"));
    }
}

async fn set_image(kubectl: &Kubectl, tag: &str) {
    let patch =
        format!(r#"[{{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "nginx:{tag}"}}]"#);
    kubectl
        .with("patch statefulset web --type=json -p", &[&patch], "")
        .await;
}

async fn set_partition(kubectl: &Kubectl, partition: u8) {
    let patch = format!(
        r#"{{"spec":{{"updateStrategy":{{"type":"RollingUpdate","rollingUpdate":{{"partition":{partition}}}}}}}}}"#
    );
    kubectl.with("patch statefulset web -p", &[&patch], "").await;
}

async fn images_become(kubectl: &Kubectl, wanted: &str) {
    eventually("images", || async { is(kubectl.run(IMAGES).await.as_str(), wanted) }).await;
}

async fn updates(kubectl: &Kubectl) {
    // From the highest ordinal down.
    let mut watch =
        kubectl.start("get pods -l app=nginx -w -o custom-columns=N:.metadata.name,D:.metadata.deletionTimestamp");
    set_image(kubectl, "1.9.2").await;
    done(kubectl).await;
    images_become(kubectl, "nginx:1.9.2 nginx:1.9.2").await;
    let mut lines = BufReader::new(watch.stdout.take().expect("a pipe")).lines();
    let mut deleted: Vec<String> = Vec::new();
    while deleted.len() < 2 {
        let line = tokio::time::timeout(Duration::from_secs(30), lines.next_line())
            .await
            .expect("a line in time");
        let line = line.expect("kubectl's output").expect("a line");
        let (name, time) = line.split_once(' ').unwrap_or_default();
        if time.contains('-') && !deleted.contains(&name.to_owned()) {
            deleted.push(name.to_owned());
        }
    }
    assert_eq!(deleted, ["web-1", "web-0"]);
    watch.kill().await.expect("kubectl ends");

    let history = kubectl.run("rollout history statefulset/web").await;
    assert!(history.contains('1') && history.contains('2'), "{history}");
    kubectl.run("rollout undo statefulset/web").await;
    done(kubectl).await;
    images_become(kubectl, "nginx:1.9.1 nginx:1.9.1").await;

    // Canary.
    set_partition(kubectl, 1).await;
    set_image(kubectl, "1.9.2").await;
    images_become(kubectl, "nginx:1.9.1 nginx:1.9.2").await;
    kubectl.run("wait --for=condition=Ready pod/web-1 --timeout=60s").await;
    delete_pods(kubectl, "web-0").await;
    eventually("web-0 is back", || async {
        is(
            kubectl
                .run("get statefulset web -o jsonpath={.status.readyReplicas}")
                .await
                .as_str(),
            "2",
        )
    })
    .await;
    images_become(kubectl, "nginx:1.9.1 nginx:1.9.2").await;
    set_partition(kubectl, 0).await;
    done(kubectl).await;
    images_become(kubectl, "nginx:1.9.2 nginx:1.9.2").await;

    // An update that stops at an error, as kubectl reports it.
    set_image(kubectl, "no-such").await;
    let reason = "get pod web-1 -o jsonpath={.status.containerStatuses[0].state.waiting.reason}";
    eventually("the image is missing", || async {
        let (_, found) = kubectl.try_with(reason, &[], "").await;
        if found.contains("ImagePull") {
            Ok(())
        } else {
            Err(found)
        }
    })
    .await;
    let (success, _) = kubectl
        .try_with("rollout status statefulset/web --timeout=2s", &[], "")
        .await;
    assert!(!success, "a broken update is not complete");
    images_become(kubectl, "nginx:1.9.2 nginx:no-such").await;
    kubectl.run("rollout undo statefulset/web").await;
    // Kubernetes' documented rule: the broken pod has to be deleted by hand.
    delete_pods(kubectl, "web-1").await;
    done(kubectl).await;
    images_become(kubectl, "nginx:1.9.2 nginx:1.9.2").await;
}

async fn scaling(kubectl: &Kubectl) {
    kubectl.run("scale statefulset web --replicas=3").await;
    done(kubectl).await;
    kubectl.run("scale statefulset/web --replicas=1").await;
    eventually("one is left", || async {
        is(
            kubectl
                .run("get pods -l app=nginx -o jsonpath={.items[*].metadata.name}")
                .await
                .as_str(),
            "web-0",
        )
    })
    .await;
    let claims = kubectl.run("get pvc -o jsonpath={.items[*].metadata.name}").await;
    assert_eq!(claims, "www-web-0 www-web-1 www-web-2");
}

async fn everyday(kubectl: &Kubectl) {
    kubectl.run("rollout restart statefulset/web").await;
    done(kubectl).await;
    let logs = kubectl.run("logs web-0").await;
    assert!(logs.starts_with("started on web-0"), "{logs}");

    let mut follow = kubectl.start("logs -f web-0");
    let mut lines = BufReader::new(follow.stdout.take().expect("a pipe")).lines();
    let mut forward = kubectl.start("port-forward pod/web-0 :8080");
    let mut told = BufReader::new(forward.stdout.take().expect("a pipe")).lines();
    let line = tokio::time::timeout(Duration::from_secs(30), told.next_line())
        .await
        .expect("in time");
    let line = line.expect("kubectl's output").expect("a line");
    let port = line
        .split(" -> ")
        .next()
        .and_then(|text| text.rsplit(':').next())
        .expect("a port");
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}"))
        .await
        .expect("the forwarded port");
    stream
        .write_all(b"GET /walk HTTP/1.0\r\n\r\n")
        .await
        .expect("to be heard");
    let mut page = String::new();
    stream.read_to_string(&mut page).await.expect("an answer");
    assert!(page.contains("hello web-0"), "{page}");
    let served = async {
        while let Ok(Some(line)) = lines.next_line().await {
            if line.contains("served GET /walk") {
                return;
            }
        }
        panic!("the log ended");
    };
    tokio::time::timeout(Duration::from_secs(30), served)
        .await
        .expect("the log follows");
    forward.kill().await.expect("kubectl ends");
    follow.kill().await.expect("kubectl ends");

    // A short-lived pod with an attached terminal. It waits for input: as everywhere, output before the attach is only
    // in its log.
    let look = ["sh", "-c", "read word; echo $word; getent hosts web-0.nginx"];
    let seen = kubectl
        .with(
            "run -i --rm --restart=Never --image=busybox look --",
            &look,
            "looking\n",
        )
        .await;
    assert!(seen.contains("looking") && seen.contains("web-0.nginx"), "{seen}");
    // Input reaches the program, and so does its end.
    let typed = "first line\nsecond line\n";
    let seen = kubectl
        .with("run -i --rm --restart=Never --image=busybox typed --", &["cat"], typed)
        .await;
    assert!(seen.contains(typed), "{seen}");
    let seen = kubectl.with("exec -i web-0 --", &["cat"], typed).await;
    assert!(seen.contains(typed), "{seen}");

    let described = kubectl.run("describe statefulset web").await;
    assert!(
        described.contains("create Pod web-0 in StatefulSet web successful"),
        "{described}"
    );
    let described = kubectl.run("describe pod web-0").await;
    assert!(described.contains("Successfully assigned"), "{described}");
    let described = kubectl.run("describe pvc www-web-0").await;
    assert!(
        described.contains("ProvisioningSucceeded") && described.contains("web-0"),
        "{described}"
    );
    let described = kubectl.run("describe service nginx").await;
    assert!(described.contains(":8080"), "{described}");
    kubectl.run("describe node node-0").await;
}

async fn farewell(kubectl: &Kubectl, namespace: &str) {
    kubectl.run("delete statefulset web").await;
    eventually("its pods go with it", || async {
        is(kubectl.run("get pods -o name").await.contains("pod/web-0"), false)
    })
    .await;
    let claims = kubectl.run("get pvc -o jsonpath={.items[*].metadata.name}").await;
    assert_eq!(claims, "www-web-0 www-web-1 www-web-2");
    kubectl
        .run(&format!("delete namespace {namespace} --timeout=90s"))
        .await;
    let (found, output) = kubectl.try_with(&format!("get namespace {namespace}"), &[], "").await;
    assert!(!found && output.contains("NotFound"), "{output}");
}
