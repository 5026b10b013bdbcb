//! `GET /progress`: how far an agent that works for long is.

use std::net::SocketAddr;
use std::sync::{Arc, RwLock};

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use stateward_etcd::api::agent::{Failure, FailureReason, Progress};

use crate::agent::failure::failure;

/// What is said at the moment. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Board(Arc<RwLock<Progress>>);

impl Board {
    pub(crate) fn change(&self, change: impl FnOnce(&mut Progress)) {
        let mut said = self.0.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        change(&mut said);
    }

    fn read(&self) -> Progress {
        self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

/// Answers until dropped.
pub(crate) async fn serve(board: Board, address: SocketAddr) -> Result<(), Failure> {
    let wrong = |error: std::io::Error| {
        failure(
            FailureReason::ListenFailed,
            format!("listening on {address}: {error}"),
            true,
        )
    };
    let listener = tokio::net::TcpListener::bind(address).await.map_err(wrong)?;
    let answer = async |State(board): State<Board>| Json(board.read());
    let router = Router::new().route("/progress", get(answer)).with_state(board);
    axum::serve(listener, router).await.map_err(wrong)
}
