//! Real object stores on loopback, ended with their handle, and a proxy that breaks what passes. Only std and tempfile, so
//! that other crates' tests and the end-to-end suite can take this file in by its path:
//! `#[path = "../../crates/backup/tests/servers/mod.rs"] mod servers;`
//!
//! The programs are built by `./x store test`.
#![allow(dead_code, reason = "each user takes what it needs")]

pub(crate) mod proxy;

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Who may use the stores.
pub(crate) const USER: &str = "stateward";
/// With what.
pub(crate) const PASSWORD: &str = "stateward-secret";

/// The key of Azure's account: any base64.
pub(crate) const AZURE_KEY: &str = "c3RhdGV3YXJkLXNlY3JldC1zdGF0ZXdhcmQtc2VjcmV0";

/// Makes a container with a signed request; the library that is tested cannot.
const MAKE_CONTAINER: &str = r#"
const [port, account, key, container] = process.argv.slice(1);
const date = new Date().toUTCString(), version = "2021-08-06";
const text = "PUT" + "\n".repeat(12) + `x-ms-date:${date}\nx-ms-version:${version}\n/${account}/${account}/${container}\nrestype:container`;
const signature = require("crypto").createHmac("sha256", Buffer.from(key, "base64")).update(text).digest("base64");
const headers = { "x-ms-date": date, "x-ms-version": version, "Content-Length": 0, Authorization: `SharedKey ${account}:${signature}` };
const path = `/${account}/${container}?restype=container`;
require("http").request({ host: "127.0.0.1", port, path, method: "PUT", headers }, answer => {
  if (answer.statusCode !== 201) { console.error(answer.statusCode); process.exitCode = 1; }
  answer.pipe(process.stderr);
}).end();
"#;

/// Lets everybody use a bucket of MinIO, with a signed request; the library that is tested cannot.
const OPEN_BUCKET: &str = r#"
const [port, user, password, bucket] = process.argv.slice(1);
const crypto = require("crypto"), host = `127.0.0.1:${port}`, region = "us-east-1";
const hash = text => crypto.createHash("sha256").update(text).digest("hex");
const mac = (key, text) => crypto.createHmac("sha256", key).update(text).digest();
const body = JSON.stringify({ Version: "2012-10-17", Statement: [{ Effect: "Allow", Principal: { AWS: ["*"] }, Action: ["s3:*"],
  Resource: [`arn:aws:s3:::${bucket}`, `arn:aws:s3:::${bucket}/*`] }] });
const time = new Date().toISOString().replace(/[-:]|\.\d+/g, ""), day = time.slice(0, 8), scope = `${day}/${region}/s3/aws4_request`;
const names = "host;x-amz-content-sha256;x-amz-date";
const request = ["PUT", `/${bucket}`, "policy=", `host:${host}`, `x-amz-content-sha256:${hash(body)}`, `x-amz-date:${time}`, "", names, hash(body)].join("\n");
const key = [day, region, "s3", "aws4_request"].reduce(mac, "AWS4" + password);
const signature = mac(key, ["AWS4-HMAC-SHA256", time, scope, hash(request)].join("\n")).toString("hex");
const headers = { "x-amz-content-sha256": hash(body), "x-amz-date": time, "Content-Length": body.length,
  Authorization: `AWS4-HMAC-SHA256 Credential=${user}/${scope}, SignedHeaders=${names}, Signature=${signature}` };
require("http").request({ host: "127.0.0.1", port, path: `/${bucket}?policy`, method: "PUT", headers }, answer => {
  if (answer.statusCode !== 204) { console.error(answer.statusCode); process.exitCode = 1; }
  answer.pipe(process.stderr);
}).end(body);
"#;

/// Whether a program was built.
pub(crate) fn is_built(name: &str) -> bool {
    find(name).is_some()
}

/// A program that `./x store test` built; the newest where there are several.
pub(crate) fn program(name: &str) -> PathBuf {
    find(name).unwrap_or_else(|| panic!("{name} is not built: run ./x store build"))
}

fn find(name: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("STATEWARD_CACHE").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache/stateward"),
        PathBuf::from,
    );
    let versions = fs::read_dir(cache.join(name)).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = versions
        .map(|entry| entry.path().join(name))
        .filter(|path| path.is_file())
        .collect();
    found.sort();
    found.pop()
}

/// A port that was free a moment ago.
pub(crate) fn free_port(ip: IpAddr) -> u16 {
    TcpListener::bind((ip, 0))
        .and_then(|listener| listener.local_addr())
        .expect("a free port")
        .port()
}

/// A server that runs.
pub(crate) struct Server {
    child: Child,
    folder: tempfile::TempDir,
    /// Where it answers.
    pub(crate) address: SocketAddr,
}

impl Server {
    /// The ID of its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// MinIO on a loopback address, with these buckets.
    pub(crate) fn minio(ip: IpAddr, buckets: &[&str]) -> Self {
        Self::minio_with(ip, buckets, None, None)
    }

    /// MinIO on a disk of its own of so many MiB, made in a mount namespace that ends with it; `None`: the machine's.
    pub(crate) fn minio_with_room(ip: IpAddr, buckets: &[&str], room: Option<u32>) -> Self {
        Self::minio_with(ip, buckets, None, room)
    }

    /// MinIO that speaks TLS, with a certificate and its key as PEM texts.
    pub(crate) fn minio_tls(ip: IpAddr, buckets: &[&str], certificate: &str, key: &str) -> Self {
        Self::minio_with(ip, buckets, Some((certificate, key)), None)
    }

    fn minio_with(ip: IpAddr, buckets: &[&str], tls: Option<(&str, &str)>, room: Option<u32>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let address = SocketAddr::new(ip, free_port(ip));
        let data = folder.path().join("data");
        for bucket in buckets {
            fs::create_dir_all(data.join(bucket)).expect("a bucket");
        }
        let mut command = match room {
            None => Command::new(program("minio")),
            Some(room) => on_small_disk(room, &data, buckets),
        };
        command
            .args(["server", "--quiet", "--address", &address.to_string()])
            .args(["--console-address", &format!("{ip}:{}", free_port(ip))])
            .arg(&data)
            .env("MINIO_ROOT_USER", USER)
            .env("MINIO_ROOT_PASSWORD", PASSWORD)
            .env("MINIO_BROWSER", "off")
            .env("HOME", folder.path());
        let Some((certificate, key)) = tls else {
            return Self::start(command, folder, address, "/minio/health/ready", " 200");
        };
        let certificates = folder.path().join("certs");
        fs::create_dir_all(&certificates).expect("a folder");
        fs::write(certificates.join("public.crt"), certificate).expect("written");
        fs::write(certificates.join("private.key"), key).expect("written");
        command.arg("--certs-dir").arg(&certificates);
        // To plain HTTP it says that it wants TLS.
        Self::start(command, folder, address, "/", " 400")
    }

    /// An emulator of Azure Blob Storage, with one container, for the account [`USER`]. Its URL names the account.
    pub(crate) fn azurite(container: &str) -> Self {
        let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let folder = tempfile::tempdir().expect("a folder");
        let address = SocketAddr::new(ip, free_port(ip));
        let script = program("azurite").with_file_name("node_modules/azurite/dist/src/blob/main.js");
        let mut command = Command::new("node");
        command
            .arg(script)
            .args(["--blobHost", &ip.to_string(), "--blobPort", &address.port().to_string()])
            .args(["--silent", "--skipApiVersionCheck", "--disableTelemetry", "--location"])
            .arg(folder.path().join("data"))
            .env("AZURITE_ACCOUNTS", format!("{USER}:{AZURE_KEY}"));
        // Without a signature it refuses, which is an answer too.
        let server = Self::start(command, folder, address, "/", " 400");
        server.ask(MAKE_CONTAINER, AZURE_KEY, container);
        server
    }

    /// MinIO with a bucket that everybody may use. Google's XML API is S3's but for who signs and how, so behind
    /// [`proxy::bearer`] this is a store that Google's client can speak to.
    pub(crate) fn minio_for_google(bucket: &str) -> Self {
        let server = Self::minio(IpAddr::V4(Ipv4Addr::LOCALHOST), &[bucket]);
        server.ask(OPEN_BUCKET, PASSWORD, bucket);
        server
    }

    /// Lets node send one signed request.
    fn ask(&self, script: &str, key: &str, what: &str) {
        let port = self.address.port().to_string();
        let done = Command::new("node")
            .args(["-e", script, &port, USER, key, what])
            .output();
        let done = done.expect("node runs");
        assert!(
            done.status.success(),
            "{what}: {}",
            String::from_utf8_lossy(&done.stderr)
        );
    }

    fn start(mut command: Command, folder: tempfile::TempDir, address: SocketAddr, path: &str, code: &str) -> Self {
        let log = fs::File::create(folder.path().join("log")).expect("a log");
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .expect("the server starts");
        let server = Self { child, folder, address };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !answers(address, path, code) {
            assert!(Instant::now() < deadline, "it does not answer: {}", server.log());
            std::thread::sleep(Duration::from_millis(50));
        }
        server
    }

    /// Its URL.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What it keeps on disk.
    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// What it said.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _already = self.child.kill();
        let _ended = self.child.wait();
    }
}

/// MinIO, when its arguments are given, on a file system in memory that only it sees.
fn on_small_disk(room: u32, data: &Path, buckets: &[&str]) -> Command {
    let script = r#"mount -t tmpfs -o "size=$1m" tmpfs "$2" && cd "$2" && mkdir $3 && shift 3 && exec "$@""#;
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--map-root-user", "--", "sh", "-c", script, "sh"])
        .arg(room.to_string())
        .arg(data)
        .arg(buckets.join(" "))
        .arg(program("minio"));
    command
}

/// The AWS files of a secret: `credentials` and `config`.
pub(crate) fn aws_files(folder: &Path, user: &str, password: &str) {
    let credentials = format!("[default]\naws_access_key_id = {user}\naws_secret_access_key = {password}\n");
    fs::write(folder.join("credentials"), credentials).expect("written");
    fs::write(folder.join("config"), "[default]\nregion = us-east-1\n").expect("written");
}

fn answers(address: SocketAddr, path: &str, code: &str) -> bool {
    let asked = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
        let mut head = [0; 12];
        stream.read_exact(&mut head)?;
        Ok(String::from_utf8_lossy(&head).into_owned())
    };
    asked().is_ok_and(|head| head.ends_with(code))
}
