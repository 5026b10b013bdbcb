//! Real etcd processes on loopback ports, ended with the test.
#![allow(dead_code, reason = "each test program takes what it needs")]

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use stateward_etcd::api::EtcdVersion;
use stateward_etcd_driver::client::{Client, Timeouts, Tls};

/// A program of etcd.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) version: EtcdVersion,
    pub(crate) path: PathBuf,
}

/// Every etcd that is at hand, oldest first. None at all fails the test: it must not pass by skipping.
pub(crate) fn programs() -> Vec<Program> {
    let folder = std::env::var_os("STATEWARD_ETCD_DIR").map_or_else(cache, PathBuf::from);
    let mut found: Vec<Program> = std::fs::read_dir(&folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            let path = entry.path().join("etcd");
            path.is_file().then_some(Program { version, path })
        })
        .collect();
    found.sort_by(|a, b| a.version.cmp(&b.version));
    assert!(
        !found.is_empty(),
        "no etcd in {}: run ./x setup, or set STATEWARD_ETCD_DIR to a folder with <version>/etcd",
        folder.display()
    );
    found
}

fn cache() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
    let cache = std::env::var_os("STATEWARD_CACHE").map_or_else(
        || {
            std::env::var_os("XDG_CACHE_HOME")
                .map_or_else(|| home().join(".cache"), PathBuf::from)
                .join("stateward")
        },
        PathBuf::from,
    );
    cache.join("etcd")
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
    listener.local_addr().expect("its address").port()
}

/// A running member.
pub(crate) struct Etcd {
    child: Child,
    _folder: tempfile::TempDir,
    /// Its certificates, which it reads at every connection.
    certificates: Option<tempfile::TempDir>,
    pub(crate) client: SocketAddr,
    pub(crate) peer_url: String,
}

pub(crate) struct Start<'a> {
    pub(crate) name: &'a str,
    pub(crate) peer_port: u16,
    pub(crate) state: &'a str,
    pub(crate) initial_cluster: &'a str,
    pub(crate) extra: Vec<String>,
}

impl Etcd {
    /// The number of its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The first member of a new cluster.
    pub(crate) fn first(program: &Program, extra: &[&str]) -> Self {
        let port = free_port();
        let initial = format!("m1=http://127.0.0.1:{port}");
        let start = Start {
            name: "m1",
            peer_port: port,
            state: "new",
            initial_cluster: &initial,
            extra: extra.iter().map(ToString::to_string).collect(),
        };
        Self::start(program, start)
    }

    /// The first member of a new cluster, with a certificate of this name, that lets only clients in which have one, too.
    pub(crate) fn with_tls(program: &Program, name: &str) -> (Self, Certificates) {
        Self::with_certificates(program, |folder| Certificates::issue(name, folder))
    }

    /// The same with one self-signed certificate with `CA:TRUE` for everything, as users of the old operator have it.
    pub(crate) fn with_one_certificate(program: &Program, name: &str) -> (Self, Certificates) {
        Self::with_certificates(program, |folder| Certificates::one(name, folder))
    }

    fn with_certificates(program: &Program, make: impl FnOnce(&Path) -> Certificates) -> (Self, Certificates) {
        let folder = tempfile::tempdir().expect("a folder");
        let certificates = make(folder.path());
        let flag = |flag: &str, file: &str| format!("--{flag}={}", folder.path().join(file).display());
        let flags = [
            flag("cert-file", "crt"),
            flag("key-file", "key"),
            flag("trusted-ca-file", "ca"),
            "--client-cert-auth".to_owned(),
        ];
        let mut etcd = Self::first(program, &flags.iter().map(String::as_str).collect::<Vec<_>>());
        etcd.certificates = Some(folder);
        (etcd, certificates)
    }

    pub(crate) fn start(program: &Program, start: Start<'_>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let client_port = free_port();
        let scheme = if start.extra.iter().any(|flag| flag.starts_with("--cert-file")) {
            "https"
        } else {
            "http"
        };
        let client_url = format!("{scheme}://127.0.0.1:{client_port}");
        let peer_url = format!("http://127.0.0.1:{}", start.peer_port);
        let child = Command::new(&program.path)
            .args(["--name", start.name, "--data-dir"])
            .arg(folder.path().join("data"))
            .args([
                "--listen-client-urls",
                &client_url,
                "--advertise-client-urls",
                &client_url,
            ])
            .args([
                "--listen-peer-urls",
                &peer_url,
                "--initial-advertise-peer-urls",
                &peer_url,
            ])
            .args(["--initial-cluster", start.initial_cluster])
            .args(["--initial-cluster-state", start.state])
            .args(&start.extra)
            .stdout(Stdio::null())
            .stderr(log(folder.path()))
            .spawn()
            .expect("etcd starts");
        Self {
            child,
            _folder: folder,
            certificates: None,
            client: SocketAddr::from(([127, 0, 0, 1], client_port)),
            peer_url,
        }
    }

    /// A member that starts from a data directory of the name `m1` that was made elsewhere.
    pub(crate) fn on(program: &Program, data: PathBuf) -> Self {
        let port = free_port();
        let initial = format!("m1=http://127.0.0.1:{port}");
        let start = Start {
            name: "m1",
            peer_port: port,
            state: "existing",
            initial_cluster: &initial,
            extra: vec!["--data-dir".into(), data.display().to_string()],
        };
        Self::start(program, start)
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.client, None, Timeouts::default()).expect("a client")
    }

    pub(crate) fn tls_client(&self, tls: &Tls, name: &str) -> Client {
        Client::new(self.client, Some((tls, name)), Timeouts::default()).expect("a client")
    }

    /// Ends it as a crash would.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An authority and what a client of a member needs, as PEM texts.
pub(crate) struct Certificates {
    pub(crate) ca: String,
    pub(crate) user: String,
    pub(crate) user_key: String,
}

impl Certificates {
    /// One that is CA and leaf, of the server and of its client.
    fn one(name: &str, folder: &Path) -> Self {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).expect("params");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("a certificate").pem();
        let key = key.serialize_pem();
        for (name, text) in [("ca", &certificate), ("crt", &certificate), ("key", &key)] {
            std::fs::write(folder.join(name), text).expect("written");
        }
        Self {
            ca: certificate.clone(),
            user: certificate,
            user_key: key,
        }
    }

    /// Writes those of the server into a folder: `ca`, `crt`, `key`.
    fn issue(server: &str, folder: &Path) -> Self {
        let ca_key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::new(Vec::new()).expect("params");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca = params.self_signed(&ca_key).expect("a CA").pem();
        let issuer = rcgen::Issuer::new(params, ca_key);
        let issue = |name: &str| {
            let key = rcgen::KeyPair::generate().expect("a key");
            let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).expect("params");
            params.extended_key_usages = vec![
                rcgen::ExtendedKeyUsagePurpose::ServerAuth,
                rcgen::ExtendedKeyUsagePurpose::ClientAuth,
            ];
            let certificate = params.signed_by(&key, &issuer).expect("signed").pem();
            (certificate, key.serialize_pem())
        };
        let (server, server_key) = issue(server);
        let (user, user_key) = issue("user");
        for (name, text) in [("ca", &ca), ("crt", &server), ("key", &server_key)] {
            std::fs::write(folder.join(name), text).expect("written");
        }
        Self { ca, user, user_key }
    }
}

fn log(folder: &Path) -> Stdio {
    std::fs::File::create(folder.join("log")).map_or_else(|_| Stdio::null(), Stdio::from)
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits until a condition gives something.
pub(crate) async fn until<T, F: AsyncFnMut() -> Option<T>>(what: &str, mut condition: F) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = condition().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited 60 s for: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
