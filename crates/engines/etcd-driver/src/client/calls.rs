//! The calls. Each is bounded in time; none is repeated here, since only the caller knows whether that is safe.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt};
use http::uri::PathAndQuery;
use prost::Message;
use stateward_etcd::cluster::{Alarm, MemberId};
use tonic::Request;
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

use crate::client::connection::{Dial, Timeouts, Tls, TlsError, channel};
use crate::client::error::{Error, Result};
use crate::client::messages::*;
use crate::client::snapshot::{SnapshotError, Sound, verified};

/// Messages of a snapshot are 32 KiB; a large range may come near etcd's own limit on requests.
const LARGEST_MESSAGE: usize = 64 << 20;

/// A member that can be spoken to. Cloning shares the connection, which is made at the first call and kept; whoever
/// holds the client decides for how long.
#[derive(Clone)]
pub struct Client {
    channel: Channel,
    pub(crate) dial: Dial,
    pub(crate) timeouts: Timeouts,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({})", self.dial.address)
    }
}

/// What to ask of the downgrade call (3.5 and later).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Downgrade {
    /// Would it be possible?
    Validate,
    /// Begin.
    Enable,
    /// Take it back.
    Cancel,
}

impl Client {
    /// A client of the member at this address. With TLS: the certificates, and the name that the member's must carry.
    pub fn new(
        address: SocketAddr,
        tls: Option<(&Tls, &str)>,
        timeouts: Timeouts,
    ) -> std::result::Result<Self, TlsError> {
        let dial = Dial::new(address, tls, timeouts.connect)?;
        Ok(Self {
            channel: channel(&dial)?,
            dial,
            timeouts,
        })
    }

    /// The same connection with another patience for answers.
    pub fn with_request_timeout(&self, request: Duration) -> Self {
        Self {
            timeouts: Timeouts {
                request,
                ..self.timeouts
            },
            ..self.clone()
        }
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.dial.address
    }

    async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<A>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let patience = self.timeouts.request;
        let answer = async {
            let mut grpc = self.grpc();
            grpc.ready().await.map_err(|error| unreachable(&error))?;
            let mut request = Request::new(request);
            request.set_timeout(patience);
            let codec: ProstCodec<Q, A> = ProstCodec::default();
            let response = grpc.unary(request, PathAndQuery::from_static(path), codec).await?;
            Ok(response.into_inner())
        };
        match tokio::time::timeout(patience, answer).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::TimedOut(format!(
                "{} said nothing within {patience:?} to {path}",
                self.dial.address
            ))),
        }
    }

    fn grpc(&self) -> Grpc<Channel> {
        Grpc::new(self.channel.clone()).max_decoding_message_size(LARGEST_MESSAGE)
    }

    /// What the member says of itself.
    pub async fn status(&self) -> Result<StatusResponse> {
        self.call("/etcdserverpb.Maintenance/Status", Empty {}).await
    }

    /// The member list; `linearizable` makes servers from 3.5 on ask a quorum first.
    pub async fn member_list(&self, linearizable: bool) -> Result<MemberListResponse> {
        self.call("/etcdserverpb.Cluster/MemberList", MemberListRequest { linearizable })
            .await
    }

    /// Adds a member that is not started yet.
    pub async fn member_add(&self, peer_url: &str, learner: bool) -> Result<MemberAddResponse> {
        let request = MemberAddRequest {
            peer_urls: vec![peer_url.to_owned()],
            is_learner: learner,
        };
        self.call("/etcdserverpb.Cluster/MemberAdd", request).await
    }

    /// Takes a member out of the list.
    pub async fn member_remove(&self, id: MemberId) -> Result<MemberListResponse> {
        self.call("/etcdserverpb.Cluster/MemberRemove", MemberIdRequest { id: id.0 })
            .await
    }

    /// Changes where peers reach a member. Never for a learner.
    pub async fn member_update(&self, id: MemberId, peer_url: &str) -> Result<MemberListResponse> {
        let request = MemberUpdateRequest {
            id: id.0,
            peer_urls: vec![peer_url.to_owned()],
        };
        self.call("/etcdserverpb.Cluster/MemberUpdate", request).await
    }

    /// Makes a learner a voter (3.4 and later).
    pub async fn member_promote(&self, id: MemberId) -> Result<MemberListResponse> {
        self.call("/etcdserverpb.Cluster/MemberPromote", MemberIdRequest { id: id.0 })
            .await
    }

    /// The alarms of all members. etcd takes this through its log: not for every heartbeat.
    pub async fn alarms(&self) -> Result<Vec<AlarmMember>> {
        let request = AlarmRequest {
            action: AlarmAction::Get.into(),
            ..AlarmRequest::default()
        };
        let response: AlarmResponse = self.call("/etcdserverpb.Maintenance/Alarm", request).await?;
        Ok(response.alarms)
    }

    /// Takes an alarm back; nothing happens where it is not raised.
    pub async fn disarm(&self, id: MemberId, alarm: Alarm) -> Result<AlarmResponse> {
        self.set_alarm(AlarmAction::Deactivate, id, alarm).await
    }

    /// Raises an alarm. Only tests and people who repair a cluster do.
    pub async fn raise(&self, id: MemberId, alarm: Alarm) -> Result<AlarmResponse> {
        self.set_alarm(AlarmAction::Activate, id, alarm).await
    }

    async fn set_alarm(&self, action: AlarmAction, id: MemberId, alarm: Alarm) -> Result<AlarmResponse> {
        let alarm = match alarm {
            Alarm::NoSpace => AlarmType::NoSpace,
            Alarm::Corrupt => AlarmType::Corrupt,
        };
        let request = AlarmRequest {
            action: action.into(),
            member_id: id.0,
            alarm: alarm.into(),
        };
        self.call("/etcdserverpb.Maintenance/Alarm", request).await
    }

    /// Gives this member's free space back; it serves nothing meanwhile.
    pub async fn defragment(&self) -> Result<HeaderResponse> {
        self.call("/etcdserverpb.Maintenance/Defragment", Empty {}).await
    }

    /// Hands leadership over. Only the leader can.
    pub async fn move_leader(&self, to: MemberId) -> Result<HeaderResponse> {
        self.call(
            "/etcdserverpb.Maintenance/MoveLeader",
            MoveLeaderRequest { target_id: to.0 },
        )
        .await
    }

    /// The hash of all keys up to a revision (0: the current one), to compare members by (3.3 and later).
    pub async fn hash_kv(&self, revision: i64) -> Result<HashKvResponse> {
        self.call("/etcdserverpb.Maintenance/HashKV", HashKvRequest { revision })
            .await
    }

    /// Whether authentication is enabled. Only 3.5 and later have a call for it; any version refuses to authenticate, with
    /// this reason, when it is off (`authStore.CheckPassword`), and a user that does not exist when it is on.
    pub async fn is_auth_enabled(&self) -> Result<bool> {
        let request = AuthenticateRequest {
            name: "stateward-asks-whether-authentication-is-enabled".to_owned(),
            password: String::new(),
        };
        let answer: Result<HeaderResponse> = self.call("/etcdserverpb.Auth/Authenticate", request).await;
        match answer {
            Err(Error::AuthNotEnabled) => Ok(false),
            Ok(_) | Err(Error::Permission(_) | Error::Refused(_)) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Asks for, begins or takes back a downgrade to a minor version, such as `3.5` (3.5 and later).
    pub async fn downgrade(&self, what: Downgrade, version: &str) -> Result<HeaderResponse> {
        let action = match what {
            Downgrade::Validate => DowngradeAction::Validate,
            Downgrade::Enable => DowngradeAction::Enable,
            Downgrade::Cancel => DowngradeAction::Cancel,
        };
        let request = DowngradeRequest {
            action: action.into(),
            version: version.to_owned(),
        };
        self.call("/etcdserverpb.Maintenance/Downgrade", request).await
    }

    /// The whole database as a stream that ends in an error unless it was complete and unharmed. The request timeout
    /// bounds every single piece. `sound` is told what it was when it ended well.
    pub async fn snapshot(
        &self,
        sound: Arc<OnceLock<Sound>>,
    ) -> Result<impl Stream<Item = std::result::Result<Bytes, SnapshotError>> + Send + use<>> {
        let patience = self.timeouts.request;
        let open = async {
            let mut grpc = self.grpc();
            grpc.ready().await.map_err(|error| unreachable(&error))?;
            let codec: ProstCodec<Empty, SnapshotResponse> = ProstCodec::default();
            let path = PathAndQuery::from_static("/etcdserverpb.Maintenance/Snapshot");
            let response = grpc.server_streaming(Request::new(Empty {}), path, codec).await?;
            Ok::<_, Error>(response.into_inner())
        };
        let pieces = tokio::time::timeout(patience, open)
            .await
            .map_err(|_| Error::TimedOut(format!("{} began no snapshot within {patience:?}", self.dial.address)))??;
        let blobs = pieces.map_ok(|piece| piece.blob).map_err(Error::from);
        Ok(verified(blobs, patience, sound))
    }

    /// Reads keys: one, or up to `range_end`. Linearizable unless the request says otherwise.
    pub async fn range(&self, request: RangeRequest) -> Result<RangeResponse> {
        self.call("/etcdserverpb.KV/Range", request).await
    }

    /// The value of one key.
    pub async fn get(&self, key: impl Into<Vec<u8>>) -> Result<Option<Vec<u8>>> {
        let request = RangeRequest {
            key: key.into(),
            ..RangeRequest::default()
        };
        Ok(self.range(request).await?.kvs.into_iter().next().map(|kv| kv.value))
    }

    /// Writes a key.
    pub async fn put(&self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Result<HeaderResponse> {
        let request = PutRequest {
            key: key.into(),
            value: value.into(),
        };
        self.call("/etcdserverpb.KV/Put", request).await
    }

    /// Deletes keys: one, or up to `range_end`.
    pub async fn delete_range(&self, request: DeleteRangeRequest) -> Result<DeleteRangeResponse> {
        self.call("/etcdserverpb.KV/DeleteRange", request).await
    }

    /// Does several steps as one change.
    pub async fn transaction(&self, steps: Vec<RequestOp>) -> Result<HeaderResponse> {
        self.call("/etcdserverpb.KV/Txn", TxnRequest { success: steps }).await
    }

    /// The newest revision that was acknowledged before this was asked: a read that a quorum confirms, of a key that need not
    /// be there.
    pub async fn linearizable_revision(&self) -> Result<i64> {
        let request = RangeRequest {
            key: vec![0],
            keys_only: true,
            ..RangeRequest::default()
        };
        let answer = self.range(request).await?;
        Ok(answer.header.map_or(0, |header| header.revision))
    }

    /// Watches every key from a revision on. The stream has no end but an error or the server's cancellation, which also comes
    /// when the member has lost its leader; the request timeout bounds only its beginning.
    pub async fn watch_all(
        &self,
        from_revision: i64,
    ) -> Result<impl Stream<Item = Result<WatchResponse>> + Send + use<>> {
        let create = WatchCreateRequest {
            key: vec![0],
            range_end: vec![0],
            start_revision: from_revision,
            progress_notify: true,
        };
        let request = WatchRequest { create: Some(create) };
        // Closing our side would end the watch.
        let requests = futures::stream::once(std::future::ready(request)).chain(futures::stream::pending());
        let patience = self.timeouts.request;
        let open = async {
            let mut grpc = self.grpc();
            grpc.ready().await.map_err(|error| unreachable(&error))?;
            let codec: ProstCodec<WatchRequest, WatchResponse> = ProstCodec::default();
            let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
            let mut request = Request::new(requests);
            // etcd ends such a stream when its member has been without a leader for an election timeout.
            request
                .metadata_mut()
                .insert("hasleader", MetadataValue::from_static("true"));
            let response = grpc.streaming(request, path, codec).await?;
            Ok::<_, Error>(response.into_inner())
        };
        let responses = tokio::time::timeout(patience, open)
            .await
            .map_err(|_| Error::TimedOut(format!("{} began no watch within {patience:?}", self.dial.address)))??;
        Ok(responses.map_err(Error::from))
    }

    /// Forgets the history before a revision; `physical` answers only when the space can be used again.
    pub async fn compact(&self, revision: i64, physical: bool) -> Result<HeaderResponse> {
        self.call("/etcdserverpb.KV/Compact", CompactionRequest { revision, physical })
            .await
    }
}

fn unreachable(error: &tonic::transport::Error) -> Error {
    if let Some(why) = crate::client::error::tls_failure(error) {
        return Error::Handshake(why);
    }
    let mut words = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        words = format!("{words}: {error}");
        source = error.source();
    }
    Error::Unreachable(words)
}
