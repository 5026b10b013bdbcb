//! A proxy before a store that breaks what passes, in the ways networks and stores do.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How it breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Not at all.
    None,
    /// The connection, and every later one, is cut when so many bytes have been sent to the store.
    CutAfter(u64),
    /// So many bytes a second to the store.
    Slow(u64),
    /// Everything that is sent with a body is answered: no room.
    Full,
    /// Whoever asks for a file is cut off.
    NoReads,
}

/// A proxy on loopback, ended with its handle.
pub(crate) struct Proxy {
    /// Where it answers.
    pub(crate) address: SocketAddr,
    fault: Arc<Mutex<Fault>>,
    sent: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
}

impl Proxy {
    /// Before a server, on its address.
    pub(crate) fn before(server: SocketAddr, fault: Fault) -> Self {
        Self::between(server.ip(), server, fault)
    }

    /// On an address, before a server.
    pub(crate) fn between(ip: IpAddr, server: SocketAddr, fault: Fault) -> Self {
        let listener = TcpListener::bind((ip, 0)).expect("a port");
        let address = listener.local_addr().expect("its address");
        let fault = Arc::new(Mutex::new(fault));
        let ended = Arc::new(AtomicBool::new(false));
        let sent = Arc::new(AtomicU64::new(0));
        let (shared, over, counted) = (fault.clone(), ended.clone(), sent.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let (shared, sent) = (shared.clone(), counted.clone());
                std::thread::spawn(move || carry(client, server, &shared, &sent));
            }
        });
        Self {
            address,
            fault,
            sent,
            ended,
        }
    }

    /// From now on, with bytes counted anew.
    pub(crate) fn set(&self, fault: Fault) {
        self.sent.store(0, Ordering::Relaxed);
        *self.fault.lock().expect("the fault") = fault;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _wakes_it = TcpStream::connect(self.address);
    }
}

fn carry(mut client: TcpStream, server: SocketAddr, fault: &Mutex<Fault>, sent: &AtomicU64) {
    let Ok(mut store) = TcpStream::connect(server) else {
        return;
    };
    if let (Ok(mut from), Ok(mut to)) = (store.try_clone(), client.try_clone()) {
        std::thread::spawn(move || {
            let _until_cut = std::io::copy(&mut from, &mut to);
            let _already = to.shutdown(Shutdown::Both);
        });
    }
    let mut piece = vec![0; 64 << 10];
    while let Ok(length @ 1..) = client.read(&mut piece) {
        let total = sent.fetch_add(length as u64, Ordering::Relaxed) + length as u64;
        let now = *fault.lock().expect("the fault");
        match now {
            Fault::CutAfter(limit) if total > limit => break,
            Fault::Slow(rate) => std::thread::sleep(Duration::from_secs_f64(length as f64 / rate as f64)),
            Fault::NoReads if piece.starts_with(b"GET ") => break,
            Fault::Full if piece.starts_with(b"PUT ") => {
                let body = "<Error><Code>XMinioStorageFull</Code><Message>no room</Message></Error>";
                let head =
                    "HTTP/1.1 507 Insufficient Storage\r\nConnection: close\r\nContent-Type: application/xml\r\n";
                let _gone = write!(client, "{head}Content-Length: {}\r\n\r\n{body}", body.len());
                let _until_closed = std::io::copy(&mut client, &mut std::io::sink());
                break;
            }
            _ => {}
        }
        if store.write_all(&piece[..length]).is_err() {
            break;
        }
    }
    let _already = (client.shutdown(Shutdown::Both), store.shutdown(Shutdown::Both));
}

/// A proxy that lets requests pass that carry this bearer token, and takes the token off. It ends with the process.
pub(crate) fn bearer(server: SocketAddr, token: &'static str) -> SocketAddr {
    let listener = TcpListener::bind((server.ip(), 0)).expect("a port");
    let address = listener.local_addr().expect("its address");
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            std::thread::spawn(move || check_each(&client, server, token));
        }
    });
    address
}

fn check_each(client: &TcpStream, server: SocketAddr, token: &str) -> std::io::Result<()> {
    let mut store = TcpStream::connect(server)?;
    let (mut from, mut to) = (store.try_clone()?, client.try_clone()?);
    std::thread::spawn(move || {
        let _until_cut = std::io::copy(&mut from, &mut to);
        let _already = to.shutdown(Shutdown::Both);
    });
    let mut requests = BufReader::new(client);
    loop {
        let (mut head, mut known, mut length) = (String::new(), false, 0);
        loop {
            let mut line = String::new();
            if requests.read_line(&mut line)? == 0 {
                return store.shutdown(Shutdown::Both);
            }
            let (name, value) = line.split_once(':').unwrap_or((&line, ""));
            match name.to_ascii_lowercase().as_str() {
                "authorization" => {
                    known = value.trim().strip_prefix("Bearer ") == Some(token);
                    continue;
                }
                "content-length" => length = value.trim().parse().unwrap_or(0),
                _ => {}
            }
            head.push_str(&line);
            if line == "\r\n" {
                break;
            }
        }
        if !known {
            let answer = "HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
            requests.get_mut().write_all(answer.as_bytes())?;
            return client.shutdown(Shutdown::Both);
        }
        store.write_all(head.as_bytes())?;
        std::io::copy(&mut (&mut requests).take(length), &mut store)?;
    }
}
