//! Relays TCP connections to the API server: from the machine's loopback into the control plane's namespace, and inside
//! each guest from the same loopback port, so that one kubeconfig works everywhere.

use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::thread;

use anyhow::{Context, Result};

use super::layout::{API_PORT, CONTROL, Guest, Run};
use super::net;

/// The relay's own process. It listens on the machine, then enters the namespace: a socket stays where it was created.
pub(crate) fn run(run: &Run) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen on the loopback address")?;
    let port = listener.local_addr()?.port();
    net::enter(run, &Guest::Control)?;
    let file = run.folder.join("relay.port");
    std::fs::write(file.with_extension("new"), port.to_string())?;
    std::fs::rename(file.with_extension("new"), file)?;
    serve(&listener);
    Ok(())
}

/// Relays inside the current namespace, from its own thread.
pub(crate) fn serve_inside(port: u16) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).context("cannot listen on the loopback address")?;
    thread::spawn(move || serve(&listener));
    Ok(())
}

fn serve(listener: &TcpListener) {
    for client in listener.incoming().flatten() {
        // The API server may be restarting; its client sees a closed connection and retries.
        thread::spawn(move || join(&client));
    }
}

fn join(client: &TcpStream) -> io::Result<()> {
    let server = TcpStream::connect((CONTROL, API_PORT))?;
    let (client_copy, server_copy) = (client.try_clone()?, server.try_clone()?);
    let back = thread::spawn(move || pass(&server_copy, &client_copy));
    pass(client, &server);
    let _ = back.join();
    Ok(())
}

/// Copies bytes in one direction until either side ends, then closes the other.
fn pass(mut from: &TcpStream, mut to: &TcpStream) {
    let _ = io::copy(&mut from, &mut to); // an error ends the connection like a close
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}
