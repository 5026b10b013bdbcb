//! Provisions volumes for claims of the storage class `standard`: a folder on the node that the scheduler chose, as a
//! `local` volume, because the kubelet honors a pod's fsGroup on those and not on `hostPath`. Deletes the folder when
//! its claim is gone, and expands volumes. Talks to the API server through kubectl's watches.

use std::fs;
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::layout::Run;
use super::objects::PROVISIONER;
use super::pki::kubeconfig;
use crate::kube::build::Parts;
use crate::paths::Paths;
use crate::shell::{cmd, output};

pub(crate) fn run(run: &Run) -> Result<()> {
    let parts = Parts::new(&Paths::find()?, &run.facts()?.version);
    let maker = Maker {
        kubectl: parts.program("kubectl"),
        kubeconfig: kubeconfig(run, "claims"),
        run,
    };
    std::thread::scope(|scope| {
        scope.spawn(|| maker.watch("persistentvolumes", |volume| maker.volume(volume)));
        maker.watch("persistentvolumeclaims", |claim| maker.claim(claim));
    });
    Ok(())
}

struct Maker<'a> {
    kubectl: PathBuf,
    kubeconfig: PathBuf,
    run: &'a Run,
}

impl Maker<'_> {
    fn kubectl(&self) -> Command {
        let mut command = cmd(&self.kubectl, ["--kubeconfig"]);
        command.arg(&self.kubeconfig);
        command
    }

    /// Calls `act` with every object of a kind, now and whenever it changes, forever. A failure is retried with the
    /// next change or, at the latest, when the watch is renewed.
    fn watch(&self, kind: &str, act: impl Fn(&Value) -> Result<()>) {
        loop {
            if let Err(error) = self.watch_once(kind, &act) {
                eprintln!("{error:#}");
            }
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    fn watch_once(&self, kind: &str, act: impl Fn(&Value) -> Result<()>) -> Result<()> {
        let mut child = self
            .kubectl()
            .args([
                "get",
                kind,
                "--all-namespaces",
                "--watch",
                "--output-watch-events",
                "-o",
                "json",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start kubectl")?;
        let events = BufReader::new(child.stdout.take().context("kubectl has no output")?);
        let mut failed = false;
        for event in serde_json::Deserializer::from_reader(events).into_iter::<Value>() {
            let event = event?;
            if event["type"] != "DELETED"
                && let Err(error) = act(&event["object"])
            {
                eprintln!("{kind} {}: {error:#}", event["object"]["metadata"]["name"]);
                failed = true;
                break;
            }
        }
        if failed {
            child.kill()?;
        }
        child.wait()?;
        Ok(())
    }

    /// Provisions a volume for a pending claim, and expands the volume of a bound claim that requests more.
    fn claim(&self, claim: &Value) -> Result<()> {
        let metadata = &claim["metadata"];
        let notes = &metadata["annotations"];
        if notes["volume.kubernetes.io/storage-provisioner"] != PROVISIONER || !metadata["deletionTimestamp"].is_null()
        {
            return Ok(());
        }
        let wanted = &claim["spec"]["resources"]["requests"]["storage"];
        match (
            claim["spec"]["volumeName"].as_str(),
            notes["volume.kubernetes.io/selected-node"].as_str(),
        ) {
            (None | Some(""), Some(node)) => self.make(claim, node),
            (Some(volume), _)
                if claim["status"]["phase"] == "Bound" && claim["status"]["capacity"]["storage"] != *wanted =>
            {
                self.grow(claim, volume, wanted)
            }
            _ => Ok(()),
        }
    }

    fn make(&self, claim: &Value, node: &str) -> Result<()> {
        let metadata = &claim["metadata"];
        let name = format!("pvc-{}", metadata["uid"].as_str().context("a claim without UID")?);
        let folder = self.run.volumes(node).join(&name);
        fs::create_dir_all(&folder)?; // owned by root, like a fresh disk: other users need an fsGroup
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": { "name": name, "annotations": { "pv.kubernetes.io/provisioned-by": PROVISIONER } },
            "spec": {
                "capacity": { "storage": claim["spec"]["resources"]["requests"]["storage"] },
                "accessModes": claim["spec"]["accessModes"],
                "volumeMode": "Filesystem",
                "storageClassName": claim["spec"]["storageClassName"],
                "persistentVolumeReclaimPolicy": "Delete",
                "claimRef": {
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": metadata["name"],
                    "namespace": metadata["namespace"], "uid": metadata["uid"],
                },
                "local": { "path": folder },
                "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [
                    { "key": "kubernetes.io/hostname", "operator": "In", "values": [node] },
                ]}]}},
            },
        });
        match self.create(&volume) {
            Err(error) if error.to_string().contains("AlreadyExists") => Ok(()), // the claim was already handled
            result => result,
        }
    }

    fn create(&self, object: &Value) -> Result<()> {
        let mut child = self
            .kubectl()
            .args(["create", "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start kubectl")?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(object.to_string().as_bytes())?;
        }
        let result = child.wait_with_output()?;
        if !result.status.success() {
            bail!("{}", String::from_utf8_lossy(&result.stderr).trim());
        }
        Ok(())
    }

    /// A folder has no size, so every request is granted, first on the volume, then on the claim.
    fn grow(&self, claim: &Value, volume: &str, wanted: &Value) -> Result<()> {
        let name = claim["metadata"]["name"].as_str().context("a claim without name")?;
        let namespace = claim["metadata"]["namespace"]
            .as_str()
            .context("a claim without namespace")?;
        let patch = json!({ "spec": { "capacity": { "storage": wanted } } }).to_string();
        output(
            self.kubectl()
                .args(["patch", "persistentvolume", volume, "--type=merge", "--patch", &patch]),
        )?;
        let patch = json!({ "status": { "capacity": { "storage": wanted } } }).to_string();
        let target = [
            "patch",
            "persistentvolumeclaim",
            name,
            "--namespace",
            namespace,
            "--subresource=status",
        ];
        output(self.kubectl().args(target).args(["--type=merge", "--patch", &patch]))?;
        Ok(())
    }

    /// Deletes a volume of ours whose claim is gone, with its data.
    fn volume(&self, volume: &Value) -> Result<()> {
        let ours = volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"] == PROVISIONER;
        let delete = volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete";
        let terminating = !volume["metadata"]["deletionTimestamp"].is_null();
        if !ours || !delete || terminating || volume["status"]["phase"] != "Released" {
            return Ok(());
        }
        let folder = Path::new(
            volume["spec"]["local"]["path"]
                .as_str()
                .context("a volume without folder")?,
        );
        if folder.starts_with(&self.run.folder) && folder.exists() {
            fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        let name = volume["metadata"]["name"].as_str().context("a volume without name")?;
        output(
            self.kubectl()
                .args(["delete", "persistentvolume", name, "--wait=false", "--ignore-not-found"]),
        )?;
        Ok(())
    }
}
