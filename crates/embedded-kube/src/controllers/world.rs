//! The watched objects that all controllers share, and the loop each controller runs in.

use std::fmt::Debug;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{StreamExt, pin_mut};
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Endpoints, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, Service, ServiceAccount,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::Error;

/// One kind, kept up to date by a watch.
pub(crate) struct Cache<K: Resource + 'static>
where
    K::DynamicType: Hash + Eq,
{
    store: Store<K>,
    wakes: Arc<Mutex<Vec<Arc<Notify>>>>,
}

impl<K> Cache<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Default + Eq + Hash + Clone + Send + Sync,
{
    fn start(client: &Client, config: watcher::Config, stop: &CancellationToken) -> Self {
        let mut writer = Writer::<K>::default();
        let store = writer.as_reader();
        let wakes: Arc<Mutex<Vec<Arc<Notify>>>> = Arc::default();
        let (stop, woken) = (stop.clone(), wakes.clone());
        let stream = watcher(Api::all(client.clone()), config)
            .modify(|object: &mut K| object.managed_fields_mut().clear())
            .default_backoff();
        tokio::spawn(async move {
            pin_mut!(stream);
            while let Some(Some(event)) = stop.run_until_cancelled(stream.next()).await {
                match event {
                    Ok(event) => writer.apply_watcher_event(&event),
                    Err(error) => {
                        tracing::debug!(kind = %K::kind(&Default::default()), %error, "watch interrupted");
                        continue;
                    }
                }
                for wake in lock(&woken).iter() {
                    wake.notify_one();
                }
            }
        });
        Cache { store, wakes }
    }

    /// Wakes `wake` on every change of this kind.
    pub(crate) fn wakes(&self, wake: &Arc<Notify>) {
        lock(&self.wakes).push(wake.clone());
        wake.notify_one();
    }

    pub(crate) fn all(&self) -> Vec<Arc<K>> {
        self.store.state()
    }

    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope>,
    {
        self.store.get(&ObjectRef::new(name).within(namespace))
    }

    /// For kinds without a namespace.
    pub(crate) fn named(&self, name: &str) -> Option<Arc<K>> {
        self.store.get(&ObjectRef::new(name))
    }

    async fn synced(&self) {
        // The error means that the writer was dropped, which only happens at the end.
        let _ = self.store.wait_until_ready().await;
    }
}

macro_rules! world {
    ($($field:ident: $kind:ty),+ $(,)?) => {
        /// All objects that the controllers read.
        pub(crate) struct World {
            pub(crate) client: Client,
            $(pub(crate) $field: Cache<$kind>,)+
            pub(crate) root_ca_maps: Cache<ConfigMap>,
        }

        impl World {
            pub(crate) fn start(client: Client, stop: &CancellationToken) -> World {
                World {
                    $($field: Cache::start(&client, watcher::Config::default(), stop),)+
                    root_ca_maps: Cache::start(
                        &client,
                        watcher::Config::default().fields(concat!("metadata.name=", "kube-root-ca.crt")),
                        stop,
                    ),
                    client,
                }
            }

            /// All kinds have been listed once.
            pub(crate) async fn synced(&self) {
                $(self.$field.synced().await;)+
                self.root_ca_maps.synced().await;
            }
        }
    };
}

world! {
    pods: Pod,
    nodes: Node,
    services: Service,
    slices: EndpointSlice,
    endpoints: Endpoints,
    claims: PersistentVolumeClaim,
    volumes: PersistentVolume,
    classes: StorageClass,
    namespaces: Namespace,
    accounts: ServiceAccount,
    leases: Lease,
    sets: StatefulSet,
    revisions: ControllerRevision,
    budgets: PodDisruptionBudget,
    definitions: CustomResourceDefinition,
}

/// Runs `pass` when woken, when the time it requested has come, and soon after an error.
pub(crate) async fn passes<F, R>(name: &'static str, wake: Arc<Notify>, stop: CancellationToken, mut pass: F)
where
    F: FnMut() -> R,
    R: Future<Output = Result<Option<Duration>, Error>>,
{
    const FIRST_RETRY: Duration = Duration::from_millis(20);
    const LONGEST_RETRY: Duration = Duration::from_secs(5);
    let mut retry = FIRST_RETRY;
    let mut next: Option<Duration> = None;
    loop {
        let timer = async {
            match next {
                Some(after) => tokio::time::sleep(after).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = wake.notified() => {}
            () = timer => {}
        }
        let result = tokio::select! {
            () = stop.cancelled() => return,
            result = pass() => result,
        };
        next = match result {
            Ok(after) => {
                retry = FIRST_RETRY;
                after
            }
            Err(error) => {
                tracing::debug!(controller = name, %error, "will try again");
                let after = retry;
                retry = (retry * 2).min(LONGEST_RETRY);
                Some(after)
            }
        };
    }
}

/// Data behind a mutex stays consistent when a task panics: every change to it is a single step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the API returned this code.
pub(crate) fn is_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// 404 and 409 mean that the object changed: the watch reports it, and the next pass handles it.
pub(crate) fn unless_moved_on<T>(result: Result<T, kube::Error>) -> Result<Option<T>, kube::Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_code(&error, 404) || is_code(&error, 409) => Ok(None),
        Err(error) => Err(error),
    }
}

/// `namespace/name` of a namespaced object.
pub(crate) fn full_name<K: ResourceExt>(object: &K) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}
