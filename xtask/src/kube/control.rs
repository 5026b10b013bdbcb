//! The control plane: etcd, the API server, the controllers, the scheduler, DNS, and the volume provisioner. kube-proxy
//! runs here too, so that commands inside this network (`./x kube exec`) reach services.

use std::fs;

use anyhow::Result;

use super::build::Parts;
use super::guest::{Daemon, api_ready, api_wanted};
use super::layout::{API_PORT, CONTROL, Guest, PODS, Run, SERVICES};
use super::node::proxy_config;
use super::permissions;
use super::pki::kubeconfig;
use crate::shell::cmd;

pub(crate) fn daemons(run: &Run, parts: &Parts) -> Result<Vec<Daemon>> {
    let folder = run.guest(&Guest::Control);
    let pki = |file: &str| run.folder.join("pki").join(file).display().to_string();
    let config = |component: &str| format!("--kubeconfig={}", kubeconfig(run, component).display());

    let etcd = [
        format!("--data-dir={}", folder.join("etcd").display()),
        "--listen-client-urls=http://127.0.0.1:2379".into(),
        "--advertise-client-urls=http://127.0.0.1:2379".into(),
        "--listen-peer-urls=http://127.0.0.1:2380".into(),
        "--unsafe-no-fsync".into(), // nothing here outlives the machine
    ];
    let api_server = [
        "--etcd-servers=http://127.0.0.1:2379".into(),
        format!("--bind-address={CONTROL}"),
        format!("--advertise-address={CONTROL}"),
        format!("--secure-port={API_PORT}"),
        format!("--tls-cert-file={}", pki("apiserver.crt")),
        format!("--tls-private-key-file={}", pki("apiserver.key")),
        format!("--client-ca-file={}", pki("ca.crt")),
        format!("--kubelet-client-certificate={}", pki("apiserver-kubelet.crt")),
        format!("--kubelet-client-key={}", pki("apiserver-kubelet.key")),
        "--kubelet-preferred-address-types=InternalIP".into(),
        "--authorization-mode=Node,RBAC".into(),
        // The second plugin is enabled on OpenShift: whoever sets blockOwnerDeletion needs permission for the owner's
        // finalizers.
        "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement".into(),
        format!("--service-cluster-ip-range={SERVICES}"),
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local".into(),
        format!("--service-account-key-file={}", pki("accounts.pub")),
        format!("--service-account-signing-key-file={}", pki("accounts.key")),
        "--allow-privileged".into(),
        "--profiling=false".into(),
        format!("--audit-policy-file={}", folder.join("audit.yaml").display()),
        format!("--audit-log-path={}", permissions::audit_log(run).display()),
        "--audit-log-maxsize=10000".into(), // one file, so that nothing is missed
    ];
    fs::write(folder.join("audit.yaml"), permissions::AUDIT_POLICY)?;
    let controller_manager = [
        config("controller-manager"),
        format!("--service-account-private-key-file={}", pki("accounts.key")),
        format!("--root-ca-file={}", pki("ca.crt")),
        "--use-service-account-credentials".into(),
        format!("--cluster-cidr={PODS}"),
        "--allocate-node-cidrs=false".into(), // each node's range is fixed
        "--node-monitor-period=1s".into(),
        "--node-monitor-grace-period=12s".into(), // so that a powered-off node is detected soon
        "--leader-elect=false".into(),
    ];
    let scheduler = [config("scheduler"), "--leader-elect=false".into()];

    fs::write(folder.join("Corefile"), corefile(run))?;
    fs::write(folder.join("proxy.json"), proxy_config(run, "node-1")?)?; // routes services as that node does
    let claims = Daemon {
        name: "claims".into(),
        command: cmd(run.program(), ["kube", "--name", &run.name, "claims"]),
        after: Vec::new(),
    };
    let ready = || api_ready(run);
    Ok(vec![
        Daemon::new("etcd", parts.etcd.join("etcd"), &etcd),
        Daemon::new("kube-apiserver", parts.program("kube-apiserver"), &api_server).after(api_wanted(run)),
        Daemon::new(
            "kube-controller-manager",
            parts.program("kube-controller-manager"),
            &controller_manager,
        )
        .after(ready()),
        Daemon::new("kube-scheduler", parts.program("kube-scheduler"), &scheduler).after(ready()),
        Daemon::new(
            "coredns",
            parts.coredns.join("coredns"),
            &[format!("-conf={}", folder.join("Corefile").display())],
        )
        .after(ready()),
        Daemon::new(
            "kube-proxy",
            parts.program("kube-proxy"),
            &[format!("--config={}", folder.join("proxy.json").display())],
        )
        .after(ready()),
        claims.after(ready()),
    ])
}

/// Names change with the pods, so nothing is cached: `ttl 0`, and no `cache` plugin. There is no other network, so
/// every other name is known not to exist.
fn corefile(run: &Run) -> String {
    let config = kubeconfig(run, "coredns");
    format!(
        "cluster.local in-addr.arpa {{
  bind {CONTROL}
  errors
  kubernetes {{
    kubeconfig {}
    pods insecure
    ttl 0
  }}
}}
. {{
  bind {CONTROL}
  template ANY ANY {{
    rcode NXDOMAIN
  }}
}}
",
        config.display()
    )
}
