//! What `stateward demo` prints for another terminal works there: this process is outside of the demo's network.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, LogParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

const PATIENCE: Duration = Duration::from_secs(120);

/// The demo, and what it printed.
struct Demo {
    process: tokio::process::Child,
    lines: Vec<String>,
}

impl Demo {
    /// As this user, or as one who must make a user namespace first.
    async fn start(unprivileged: bool) -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/etcd-cluster.yaml");
        let program = env!("CARGO_BIN_EXE_stateward");
        let mut command = match unprivileged {
            false => Command::new(program),
            true => {
                let mut command = Command::new("setpriv");
                // The kernel asks for this one where the user is root, whom this process plays already.
                command.args(["--inh-caps=-all,+setfcap", "--bounding-set=-all,+setfcap", program]);
                command
            }
        };
        command.args(["demo", "--file"]).arg(file);
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut lines = Vec::new();
        let printed = tokio::time::timeout(PATIENCE, async {
            while let Some(line) = stdout.next_line().await.unwrap() {
                let last = line.starts_with("Ctrl-C");
                lines.push(line);
                if last {
                    return true;
                }
            }
            false
        });
        assert_eq!(printed.await, Ok(true), "the demo printed only {lines:#?}");
        // What it says later is not needed, and must not fill the pipe.
        tokio::spawn(async move { while let Ok(Some(_)) = stdout.next_line().await {} });
        Self { process, lines }
    }

    fn line_with(&self, what: &str) -> &str {
        let line = self.lines.iter().find(|line| line.contains(what));
        line.unwrap_or_else(|| panic!("no line with {what}: {:#?}", self.lines))
            .trim()
    }

    async fn client(&self) -> Client {
        let path = self.line_with("export KUBECONFIG=").split_once('=').unwrap().1;
        let config = Kubeconfig::read_from(path).unwrap();
        let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default())
            .await
            .unwrap();
        Client::try_from(config).unwrap()
    }

    async fn stop(mut self) {
        let pid = i32::try_from(self.process.id().unwrap()).unwrap();
        kill(Pid::from_raw(pid), Signal::SIGINT).unwrap();
        let ended = tokio::time::timeout(PATIENCE, self.process.wait()).await;
        assert!(ended.unwrap().unwrap().success());
    }
}

/// What a person gets for a line that they paste.
async fn paste(line: &str) -> String {
    let output = Command::new("sh").args(["-c", line]).output().await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{line}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// A server on this machine's loopback address, which says the same to everybody.
fn server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let _ = connection.read(&mut [0; 1]);
            let _ = connection.write_all(b"here is the machine");
        }
    });
    port
}

/// What a pod prints that runs this Perl script.
async fn output_of(client: &Client, name: &str, script: &str) -> String {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let pod = serde_json::json!({"metadata": {"name": name}, "spec": {"restartPolicy": "Never", "containers": [
        {"name": "perl", "image": "busybox", "command": ["perl", "-MIO::Socket::INET", "-e", script]}]}});
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap())
        .await
        .unwrap();
    let ended = kube::runtime::wait::await_condition(pods.clone(), name, |pod: Option<&Pod>| {
        let phase = pod.and_then(|pod| pod.status.as_ref()?.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    });
    tokio::time::timeout(PATIENCE, ended).await.unwrap().unwrap();
    pods.logs(name, &LogParams::default()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_demo_prints_works_in_another_terminal() {
    for unprivileged in [false, true] {
        // Given the demo, also as somebody who may administer nothing
        let demo = Demo::start(unprivileged).await;
        // When its lines are pasted, then kubectl shows the cluster and its members
        let exports: Vec<&str> = demo.lines.iter().map(|line| line.trim()).collect();
        let exports = exports.into_iter().filter(|line| line.starts_with("export "));
        let lines: Vec<&str> = exports.chain([demo.line_with("kubectl get")]).collect();
        let shown = paste(&lines.join("\n")).await;
        assert!(shown.contains("etcdcluster.etcd.database.coreos.com/"), "{shown}");
        assert!(shown.matches("pod/").count() >= 3, "{shown}");
        // And etcd is reached by its service's name
        let put = demo.line_with("local exec");
        assert_eq!(paste(put).await.trim(), "OK");
        let get = put.replace("put hello world", "get hello");
        assert_eq!(paste(&get).await, "hello\nworld\n");
        // And the API server serves here, port-forward too
        let client = demo.client().await;
        let pods: Api<Pod> = Api::default_namespaced(client.clone());
        let members = pods.list(&ListParams::default()).await.unwrap();
        let member = members.items.first().expect("a member").name_any();
        let mut forwarded = pods.portforward(&member, &[2379]).await.unwrap();
        let mut stream = forwarded.take_stream(2379).unwrap();
        stream.write_all(b"GET /version HTTP/1.0\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains("etcdserver"), "{answer}");
        // And pods reach a server on this machine's loopback address
        let port = server();
        let script = format!(
            r#"my $s = IO::Socket::INET->new(PeerAddr => "host.cluster.internal:{port}", Timeout => 9) or die "no: $@";
               print $s "?"; print <$s>"#
        );
        assert_eq!(output_of(&client, "out", &script).await, "here is the machine");
        demo.stop().await;
    }
}
