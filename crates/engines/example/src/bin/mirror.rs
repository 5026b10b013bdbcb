//! The program in a Mirror's pods: `mirror ADDRESS [TEXT]`. `GET /` answers the file, or 503 while there is none; `POST /ADDRESS`
//! fetches it from there.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "0.0.0.0:7878".into());
    let mut file = arguments.next();
    for stream in TcpListener::bind(address)?.incoming() {
        // A client that goes away is no reason to end.
        let _ = stream.and_then(|stream| answer(stream, &mut file));
    }
    Ok(())
}

fn answer(mut stream: TcpStream, file: &mut Option<String>) -> std::io::Result<()> {
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line)?;
    let mut words = line.split(' ');
    if words.next() == Some("POST") {
        let from = words.next().unwrap_or_default().trim_start_matches('/');
        if let Some(fetched) = fetch(from)? {
            *file = Some(fetched);
        }
    }
    let (code, body) = match file {
        Some(file) => ("200 OK", file.as_str()),
        None => ("503 Service Unavailable", ""),
    };
    write!(stream, "HTTP/1.0 {code}\r\n\r\n{body}")
}

fn fetch(from: &str) -> std::io::Result<Option<String>> {
    let mut stream = TcpStream::connect(from)?;
    write!(stream, "GET / HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let file = answer.split_once("\r\n\r\n").filter(|(head, _)| head.contains(" 200 "));
    Ok(file.map(|(_, body)| body.to_owned()))
}
