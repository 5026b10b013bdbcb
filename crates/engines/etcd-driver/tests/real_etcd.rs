//! Against real servers, every version that is at hand.

#[path = "client_support/mod.rs"]
mod support;

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use stateward_etcd::cluster::{Alarm, MemberId};
use stateward_etcd_driver::client::messages::{DeleteRangeRequest, RangeRequest};
use stateward_etcd_driver::client::{Asked, Client, Downgrade, Error, Timeouts, Tls, ask, hash_of_data, prove_list};
use support::{Etcd, Program, Start, free_port, programs, until};

async fn answers(client: &Client) -> Asked {
    until("an answer with a leader", async || {
        ask(client).await.ok().filter(|asked| asked.reply.leader.is_some())
    })
    .await
}

#[tokio::test]
async fn a_member_tells_about_itself_and_a_quorum_proves_the_list() {
    for program in programs() {
        let etcd = Etcd::first(&program, &[]);
        let client = etcd.client();
        let reply = answers(&client).await.reply;
        assert_eq!(reply.version, program.version);
        assert_eq!(reply.leader, Some(reply.id));
        assert!(!reply.learner && reply.db_size > 0);
        let list = until("a proven list with a name", async || {
            let list = prove_list(&client, &reply).await.ok()?;
            list.members[0].name.is_some().then_some(list)
        })
        .await;
        assert_eq!(list.cluster, reply.cluster);
        assert_eq!(list.members.len(), 1);
        assert_eq!(list.members[0].peer_urls, std::slice::from_ref(&etcd.peer_url));
        assert!(client.member_list(false).await.expect("a list").members[0].client_urls[0].contains("127.0.0.1"));

        client.put("a", "1").await.expect("put");
        assert_eq!(client.get("a").await.expect("get"), Some(b"1".to_vec()));
        assert_eq!(
            client.range(RangeRequest::count_of_all(0)).await.expect("count").count,
            1
        );
        let gone = client
            .delete_range(DeleteRangeRequest {
                key: b"a".to_vec(),
                range_end: Vec::new(),
            })
            .await;
        assert_eq!(gone.expect("delete").deleted, 1);

        assert_eq!(
            client.member_remove(MemberId(1)).await.expect_err("no such member"),
            Error::MemberNotFound
        );
        let taken = client.member_add(&etcd.peer_url, false).await;
        assert!(matches!(taken, Err(Error::AlreadyThere(_))), "{taken:?}");
    }
}

#[tokio::test]
async fn learners_join_and_are_promoted_when_they_have_caught_up() {
    for program in programs().into_iter().filter(|program| program.version.has_learners()) {
        let several = if program.version.has_max_learners() {
            &["--max-learners=2"][..]
        } else {
            &[]
        };
        let first = Etcd::first(&program, several);
        let client = first.client();
        let leader = answers(&client).await.reply;
        let port = free_port();
        let url = format!("http://127.0.0.1:{port}");
        let added = client
            .member_add(&url, true)
            .await
            .expect("added")
            .member
            .expect("its line");
        let second = client.member_add("http://127.0.0.1:1", true).await;
        if program.version.has_max_learners() {
            let id = MemberId(second.expect("two learners from 3.6 on").member.expect("its line").id);
            client.member_remove(id).await.expect("removed");
        } else {
            assert!(matches!(second, Err(Error::NotYet(_))), "{second:?}");
        }
        let early = client
            .member_promote(MemberId(added.id))
            .await
            .expect_err("it has not started");
        assert!(early.is_for_now(), "{early:?}");

        let initial = format!("m1={},m2={url}", first.peer_url);
        let start = Start {
            name: "m2",
            peer_port: port,
            state: "existing",
            initial_cluster: &initial,
            extra: Vec::new(),
        };
        let second = Etcd::start(&program, start);
        let learner = second.client();
        let asked = answers(&learner).await.reply;
        assert!(asked.learner && asked.list.is_empty());
        assert_eq!(asked.cluster, leader.cluster);
        until("the promotion", async || {
            client.member_promote(MemberId(added.id)).await.ok()
        })
        .await;
        // which of the two a version says depends on what it looks at first
        let again = client.member_promote(MemberId(added.id)).await;
        assert!(matches!(again, Err(Error::NotALearner | Error::NotYet(_))), "{again:?}");

        // right after a promotion etcd refuses to add: the strict reconfiguration check
        let refused = client.member_add("http://127.0.0.1:1", true).await;
        assert!(matches!(refused, Err(Error::NotYet(_))), "{refused:?}");

        // leadership moves, and only the leader can move it
        let wrong = until("the learner to know that it votes", async || {
            let error = learner.move_leader(MemberId(added.id)).await.err()?;
            (!matches!(&error, Error::Refused(why) if why.contains("learner"))).then_some(error)
        })
        .await;
        assert!(matches!(wrong, Error::NotYet(_)), "{wrong:?}");
        until("the hand-over", async || {
            client.move_leader(MemberId(added.id)).await.ok()
        })
        .await;
        until("the new leader", async || {
            let asked = ask(&client).await.ok()?;
            (asked.reply.leader == Some(MemberId(added.id))).then_some(())
        })
        .await;
        let listed = client
            .member_update(MemberId(added.id), "http://localhost:4711")
            .await
            .expect("updated");
        assert!(
            listed
                .members
                .iter()
                .any(|member| member.peer_urls == ["http://localhost:4711"])
        );
    }
}

#[tokio::test]
async fn without_quorum_nothing_is_proven() {
    for program in programs() {
        let mut first = Etcd::first(&program, &[]);
        let client = first.client();
        let asked = answers(&client).await;
        // a second voter that never starts: one of two is no quorum
        until("a second voter", async || {
            client.member_add("http://127.0.0.1:1", false).await.ok()
        })
        .await;
        let quick = client.with_request_timeout(Duration::from_millis(700));
        until("the loss to show", async || {
            prove_list(&quick, &asked.reply).await.err()
        })
        .await;
        // its own word is still to be had
        let alone = ask(&quick).await.expect("it answers");
        assert_eq!(alone.reply.list.len(), 2);
        first.kill();
        // the call that meets the end of the connection says that it broke
        until("nothing to listen", async || {
            matches!(ask(&quick).await, Err(Error::Unreachable(_))).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn space_that_ran_out_is_seen_and_given_back() {
    for program in programs() {
        let etcd = Etcd::first(&program, &["--quota-backend-bytes=4194304"]);
        let client = etcd.client();
        answers(&client).await;
        let value = vec![b'x'; 256 << 10];
        let full = loop {
            if let Err(error) = client.put("big", value.clone()).await {
                break error;
            }
        };
        assert!(matches!(full, Error::NoSpace(_)), "{full:?}");
        let asked = until("the alarm", async || {
            ask(&client).await.ok().filter(|asked| !asked.alarms.is_empty())
        })
        .await;
        assert_eq!(asked.alarms, [(asked.reply.id, Alarm::NoSpace)]);

        let revision = client.get_revision().await;
        client.compact(revision, true).await.expect("compacted");
        client.defragment().await.expect("defragmented");
        client.disarm(asked.reply.id, Alarm::NoSpace).await.expect("disarmed");
        assert!(ask(&client).await.expect("an answer").alarms.is_empty());
        client.put("small", "fits").await.expect("room again");
    }
}

trait Revision {
    async fn get_revision(&self) -> i64;
}
impl Revision for Client {
    async fn get_revision(&self) -> i64 {
        let read = RangeRequest {
            key: b"none".to_vec(),
            ..RangeRequest::default()
        };
        self.range(read)
            .await
            .expect("a read")
            .header
            .expect("its header")
            .revision
    }
}

#[tokio::test]
async fn a_snapshot_is_streamed_and_checked() {
    for program in programs() {
        let etcd = Etcd::first(&program, &[]);
        let client = etcd.client();
        answers(&client).await;
        client.put("a", vec![b'x'; 300 << 10]).await.expect("put");
        let mut stream = Box::pin(client.snapshot(Arc::default()).await.expect("a stream"));
        let mut total = 0;
        while let Some(piece) = stream.next().await {
            total += piece.expect("unharmed").len();
        }
        assert!(total > 300 << 10);
        assert_eq!(total % 512, 32, "the database and its trailer");
    }
}

#[tokio::test]
async fn calls_that_a_version_lacks_say_so() {
    for program in programs() {
        let etcd = Etcd::first(&program, &[]);
        let client = etcd.client();
        answers(&client).await;
        let version = &program.version;
        if version.at_least(3, 3, 0) {
            client.hash_kv(0).await.expect("a hash");
        }
        let target = format!("3.{}.0", version.minor() - 1);
        let asked = client.downgrade(Downgrade::Validate, &target).await;
        if version.at_least(3, 5, 0) {
            // 3.5 knows the call; whether it allows it is its own matter
            assert!(!matches!(asked, Err(Error::Unsupported(_))), "{asked:?}");
        } else {
            assert!(matches!(asked, Err(Error::Unsupported(_))), "{asked:?}");
        }
    }
}

#[tokio::test]
async fn an_address_is_dialled_and_another_name_verified() {
    let program: Program = programs().pop().expect("one");
    let (etcd, given) = Etcd::with_tls(&program, "m1.c.ns.svc");
    let user = (given.user.as_bytes(), given.user_key.as_bytes());
    let tls = Tls::new(given.ca.as_bytes(), Some(user)).expect("certificates");
    answers(&etcd.tls_client(&tls, "m1.c.ns.svc")).await;

    let other_name = ask(&etcd.tls_client(&tls, "m2.c.ns.svc")).await;
    let says_why = |why: &str| why.contains("certificate is not for the name m2.c.ns.svc") && why.len() < 200;
    assert!(
        matches!(&other_name, Err(Error::Handshake(why)) if says_why(why)),
        "{other_name:?}"
    );
    let nobody = Tls::new(given.ca.as_bytes(), None).expect("certificates");
    // The server says so after the handshake and closes the connection, which may end before its words were read.
    let says_who = |why: &str| why.contains("does not accept our client certificate");
    until("the server to say why it closes the connection", async || {
        match ask(&etcd.tls_client(&nobody, "m1.c.ns.svc")).await {
            Err(Error::Handshake(why)) if says_who(&why) => Some(()),
            Err(Error::Broken(_)) => None,
            other => panic!("{other:?}"),
        }
    })
    .await;
    let plain = Client::new(etcd.client, None, Timeouts::default()).expect("a client");
    assert!(matches!(ask(&plain).await, Err(Error::Broken(_) | Error::TimedOut(_))));
    assert!(Tls::new(b"no certificate", None).is_err());
}

#[tokio::test]
async fn under_corrupt_a_quorum_proves_the_list_and_data_can_be_compared() {
    for program in programs()
        .into_iter()
        .filter(|program| program.version.at_least(3, 3, 0))
    {
        // given a member that serves
        let etcd = Etcd::first(&program, &[]);
        let client = etcd.client();
        let reply = answers(&client).await.reply;
        client.put("key", "value").await.expect("written");
        assert_eq!(hash_of_data(&client).await.expect("an answer"), None);
        // when CORRUPT is raised for itself, for a member that is not in the list, and for nobody
        let raised = [reply.id, MemberId(0x1234), MemberId(0)];
        for id in raised {
            client.raise(id, Alarm::Corrupt).await.expect("raised");
        }
        // then all of them are told,
        let mut told = ask(&client).await.expect("an answer").alarms;
        told.sort_unstable();
        let mut expected = raised.map(|id| (id, Alarm::Corrupt));
        expected.sort_unstable();
        assert_eq!(told, expected, "{}", program.version);
        // writes are refused while reads and the proof of the list go on,
        let refused = client.put("key", "other").await.expect_err("refused");
        assert!(refused.to_string().contains("corrupt cluster"), "{refused}");
        assert_eq!(client.get("key").await.expect("read"), Some(b"value".to_vec()));
        prove_list(&client, &reply).await.expect("a quorum proves the list");
        // the data has a hash that stands still,
        let hash = hash_of_data(&client).await.expect("an answer").expect("a hash");
        assert_eq!(hash_of_data(&client).await.expect("an answer"), Some(hash));
        assert!(hash.revision >= 2, "{hash}");
        // and when every alarm is disarmed, writes are taken again.
        for id in raised {
            assert!(client.put("key", "other").await.is_err());
            client.disarm(id, Alarm::Corrupt).await.expect("disarmed");
        }
        client.put("key", "other").await.expect("written");
    }
}

#[tokio::test]
async fn data_that_really_differs_has_another_hash() {
    const RIGHT: &[u8] = b"what everybody confirmed";
    const WRONG: &[u8] = b"what only one member has";
    for program in programs()
        .into_iter()
        .filter(|program| program.version.at_least(3, 4, 0))
    {
        // given three members with the same data
        let ports = [free_port(), free_port(), free_port()];
        let names = ["m1", "m2", "m3"];
        let urls = names
            .iter()
            .zip(ports)
            .map(|(name, port)| format!("{name}=http://127.0.0.1:{port}"));
        let initial = urls.collect::<Vec<_>>().join(",");
        let start = |index: usize, state, extra| {
            let start = Start {
                name: names[index],
                peer_port: ports[index],
                state,
                initial_cluster: &initial,
                extra,
            };
            Etcd::start(&program, start)
        };
        let mut members: Vec<Etcd> = (0..3).map(|index| start(index, "new", Vec::new())).collect();
        let clients: Vec<Client> = members.iter().map(Etcd::client).collect();
        for client in &clients {
            answers(client).await;
        }
        clients[0].put("key", RIGHT).await.expect("written");
        assert_eq!(clients[2].get("key").await.expect("applied"), Some(RIGHT.to_vec()));
        // when the database of one of them is changed while it does not run
        members[2].stop();
        let file = members[2].data().join("member/snap/db");
        let mut database = std::fs::read(&file).expect("a database");
        let mut at = 0;
        let mut changed = 0;
        while let Some(found) = database[at..].windows(RIGHT.len()).position(|bytes| bytes == RIGHT) {
            at += found;
            database[at..at + WRONG.len()].copy_from_slice(WRONG);
            changed += 1;
        }
        assert!(changed > 0, "its database does not have the value");
        std::fs::write(&file, database).expect("written");
        let data = format!("--data-dir={}", members[2].data().display());
        let changed = start(2, "existing", vec![data]);
        let third = changed.client();
        answers(&third).await;
        // then it takes part with other data,
        assert_eq!(third.get("key").await.expect("read"), Some(WRONG.to_vec()));
        // and under the alarm its hash differs at the same revision, while the others agree
        clients[0].raise(MemberId(0), Alarm::Corrupt).await.expect("raised");
        let mut hashes = Vec::new();
        for client in [&clients[0], &clients[1], &third] {
            let hash = until("a hash", async || hash_of_data(client).await.ok().flatten()).await;
            hashes.push(hash);
        }
        assert_eq!(hashes[0], hashes[1], "{}", program.version);
        assert_ne!(hashes[0].hash, hashes[2].hash, "{}", program.version);
        let place = |hash: &stateward_etcd::cluster::DataHash| (hash.revision, hash.compact_revision);
        assert_eq!(place(&hashes[0]), place(&hashes[2]), "{}", program.version);
    }
}

#[tokio::test]
async fn a_failed_handshake_is_told_apart_from_no_reply() {
    // Given somebody who listens and does not speak TLS, and nobody,
    let (address, server) = listens(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    let ca = rcgen::generate_simple_self_signed(["member".to_owned()]).expect("a certificate");
    let tls = Tls::new(ca.cert.pem().as_bytes(), None).expect("usable");
    // when both are asked with TLS,
    let ask_at = async |address| {
        let client = Client::new(address, Some((&tls, "member")), Timeouts::default()).expect("a client");
        ask(&client).await.expect_err("no etcd is there")
    };
    let (handshake, why_no_reply) = (
        ask_at(address).await,
        ask_at(([127, 0, 0, 1], free_port()).into()).await,
    );
    server.abort();
    // then the first one fails for its handshake.
    assert!(matches!(handshake, Error::Handshake(_)), "{handshake}");
    assert!(matches!(why_no_reply, Error::Unreachable(_)), "{why_no_reply}");
}

/// Listens, and keeps every connection without a reply, or replies with this to each. None is closed: what was not read of a
/// connection makes the kernel reset it, and the other side may lose the reply.
async fn listens(reply: &'static [u8]) -> (std::net::SocketAddr, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let server = tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let _gone = tokio::io::AsyncWriteExt::write_all(&mut stream, reply).await;
            open.push(stream);
        }
    });
    (address, server)
}

#[tokio::test]
async fn an_open_port_without_etcd_is_told_apart_from_one_where_nothing_listens() {
    let ca = rcgen::generate_simple_self_signed(["member".to_owned()]).expect("a certificate");
    let tls = Tls::new(ca.cert.pem().as_bytes(), None).expect("usable");
    let quick = Timeouts {
        connect: Duration::from_secs(1),
        request: Duration::from_secs(3),
    };
    // For what fails by itself.
    let patient = Timeouts {
        connect: Duration::from_secs(20),
        request: Duration::from_secs(60),
    };
    let ask_at = async |address, tls: Option<(&Tls, &str)>, timeouts| {
        let client = Client::new(address, tls, timeouts).expect("a client");
        let first = ask(&client).await.expect_err("no etcd is there");
        // The second attempt is made on the same client, as a reconcile does.
        let second = ask(&client).await.expect_err("no etcd is there");
        assert_eq!(
            std::mem::discriminant(&first),
            std::mem::discriminant(&second),
            "{first}; {second}"
        );
        second
    };
    // Given a port that accepts connections and never replies,
    let (mute, server) = listens(b"").await;
    // then that is what the error says, with TLS too, and even if the request timeout is shorter than that of the connection.
    let short = Timeouts {
        connect: Duration::from_secs(20),
        request: Duration::from_millis(500),
    };
    for timeouts in [quick, short] {
        let plain = ask_at(mute, None, timeouts).await;
        assert!(matches!(plain, Error::TimedOut(_)), "{plain}");
        let with_tls = ask_at(mute, Some((&tls, "member")), timeouts).await;
        assert!(matches!(with_tls, Error::TimedOut(_) | Error::Broken(_)), "{with_tls}");
    }
    server.abort();
    // Given a port that speaks another protocol,
    let (other, server) = listens(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    let another = ask_at(other, None, patient).await;
    assert!(matches!(another, Error::Broken(_)), "{another}");
    server.abort();
    // and a port that nothing listens on.
    let nothing = ask_at(([127, 0, 0, 1], free_port()).into(), None, patient).await;
    assert!(matches!(nothing, Error::Unreachable(_)), "{nothing}");
}

#[tokio::test]
async fn whether_authentication_is_enabled_can_be_asked_of_any_version() {
    for program in programs() {
        let etcd = Etcd::first(&program, &[]);
        let client = etcd.client();
        answers(&client).await;
        let enabled = client.is_auth_enabled().await.expect("an answer");
        assert!(!enabled, "{}", program.version);
    }
}

#[tokio::test]
async fn one_self_signed_certificate_serves_as_ca_and_leaf() {
    for program in programs() {
        // Given a member with a certificate of the old operator's users,
        let (etcd, given) = Etcd::with_one_certificate(&program, "m1.c.ns.svc");
        let user = (given.user.as_bytes(), given.user_key.as_bytes());
        // then it is talked to under its name, and under no other.
        let tls = Tls::new(given.ca.as_bytes(), Some(user)).expect("certificates");
        answers(&etcd.tls_client(&tls, "m1.c.ns.svc")).await;
        let other_name = ask(&etcd.tls_client(&tls, "m2.c.ns.svc")).await;
        assert!(matches!(other_name, Err(Error::Handshake(_))), "{other_name:?}");
    }
}
