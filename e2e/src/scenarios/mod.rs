//! The scenarios. Each one is a sentence of the operations manual, with a client that writes continuously and
//! afterwards reads back every acknowledged write.

mod adopt;
mod adopt_scope;
mod alarms;
mod backup;
mod backup_kept;
mod backup_s3;
mod cert_manager;
mod create;
mod heal;
mod images;
mod infrastructure;
mod install;
mod maintenance;
mod mysql;
mod operator;
mod quorum;
mod refused;
mod restore;
mod scale;
mod spec;
mod stateful_set;
mod stateful_set_features;
mod stateful_set_mysql;
mod tls;
mod tls_rotation;
mod upgrade;

use anyhow::Result;
use futures::future::LocalBoxFuture;

use crate::environment::Need;
use crate::test::Test;

pub(crate) struct Scenario {
    /// What `--list` shows.
    pub(crate) name: &'static str,
    /// One of the most important ones.
    pub(crate) smoke: bool,
    /// It breaks or counts something shared (the operator, nodes, the API server), so nothing runs beside it.
    pub(crate) alone: bool,
    /// What it needs from its environment.
    pub(crate) needs: &'static [Need],
    /// The time limit in seconds.
    pub(crate) limit: u64,
    /// The scenario. The text that it returns goes into the summary.
    pub(crate) run: for<'a> fn(&'a Test) -> LocalBoxFuture<'a, Result<String>>,
}

macro_rules! scenarios {
    ($($module:ident :: $name:ident $($mark:ident)* $( [$($need:ident $(($image:literal))?),*] )? $limit:literal ;)*) => {
        /// All scenarios. Those that can run in parallel run first.
        pub(crate) const SCENARIOS: &[Scenario] = &[$(
            Scenario {
                name: stringify!($name),
                smoke: false $(|| scenarios!(@smoke $mark))*,
                alone: false $(|| scenarios!(@alone $mark))*,
                needs: &[$($(Need::$need $(($image))?),*)?],
                limit: $limit,
                run: |test| Box::pin($module::$name(test)),
            },
        )*];
    };
    (@smoke smoke) => { true };
    (@smoke alone) => { false };
    (@alone smoke) => { false };
    (@alone alone) => { true };
}

scenarios! {
    // A real kubelet waits for minutes between restarts, so this one starts first and runs beside all others.
    heal::crash_loop_that_replacing_does_not_end 1800;
    create::one_member smoke 120;
    create::three_members smoke 180;
    create::three_members_parallel smoke 180;
    create::five_members 240;
    create::recreate_under_the_same_name 240;
    create::deleting_removes_everything smoke 180;
    create::twenty_clusters_at_once alone 600;
    scale::out_and_in smoke 300;
    scale::change_of_mind 300;
    scale::chosen_member_leaves_first 240;
    scale::with_kubectl_scale_subresource 240;
    heal::kill_the_leader smoke 180;
    heal::delete_a_pod smoke 180;
    heal::delete_pod_and_claim smoke 240;
    heal::delete_all_pods smoke 240;
    heal::lose_a_volume 240;
    heal::corrupt_a_volume 300;
    heal::freeze_a_member 240;
    heal::ephemeral_member_lost 240;
    heal::lose_a_node_for_good alone [Nodes] 400;
    heal::cut_a_member_off alone [Cuts] 240;
    heal::operator_cut_off_from_a_member alone 300;
    operator::killed_during_create smoke alone 240;
    operator::killed_during_scale alone 300;
    operator::killed_during_replacement alone 300;
    operator::restart_touches_no_pod smoke alone 180;
    operator::killed_after_every_write alone [Meter, AllVersions] 1500;
    operator::two_operators_and_a_moving_lease alone [Meter] 600;
    operator::idle_clusters_send_no_requests alone [Meter] 400;
    quorum::lost_without_consent 240;
    quorum::recovered_from_survivor 300;
    quorum::cut_off_majority_is_given_up_only_on_proof alone [Nodes] 900;
    quorum::majority_on_nodes_out_of_service_is_given_up alone [Nodes, Kubectl, S3] 1200;
    upgrade::one_minor smoke 300;
    upgrade::refused_path 240;
    upgrade::refused_while_authentication_is_enabled [AllVersions] 400;
    upgrade::downgrade_reverted [AllVersions] 600;
    upgrade::from_the_oldest_to_the_newest_and_back [AllVersions] 1500;
    spec::bad_image_then_revert smoke 300;
    spec::unsatisfiable_node_selector_then_revert 300;
    refused::a_rejected_pod_stops_no_member smoke 600;
    refused::a_full_quota_does_not_block_a_rollout 400;
    refused::reserved_labels_are_rejected 240;
    spec::edits_reach_running_pods 300;
    spec::labels_change_without_a_restart 240;
    spec::pause 240;
    spec::hibernate 240;
    spec::invalid_specs_are_rejected smoke 120;
    spec::invalid_specs_that_pass_admission 400;
    spec::the_seeds_walk_through_with_kubectl [Kubectl, AllVersions] 900;
    tls::tls_auto smoke 240;
    tls::tls_switched_on_and_off 400;
    tls::tls_static 600;
    tls::tls_static_with_one_self_signed_certificate 300;
    tls::tls_static_operator_trusts_another_ca 400;
    tls::tls_static_server_certificate_without_the_name 400;
    tls::tls_secret_of_the_user_is_left_alone 400;
    tls::tls_static_ca_changed_by_the_user 900;
    tls_rotation::tls_static_becomes_auto 600;
    tls_rotation::tls_auto_becomes_static 600;
    tls_rotation::tls_ca_rotated 600;
    tls_rotation::tls_ca_of_the_user_replaced 900;
    tls_rotation::tls_ca_rotated_during_a_continuous_backup 900;
    tls_rotation::tls_ca_rotated_while_the_operator_crashes alone 900;
    cert_manager::tls_by_cert_manager [CertManager] 2400;
    cert_manager::issuer_ca_rotated [CertManager] 2400;
    cert_manager::peers_have_their_own_issuer [CertManager] 2400;
    alarms::alarms_of_any_member_are_cleared smoke 420;
    alarms::image_pull_failure_is_reported [Kubectl] 300;
    maintenance::fill_the_quota 300;
    maintenance::claims_grow 240;
    maintenance::defragmented_by_schedule 300;
    install::operator_pod_is_well_behaved smoke alone [OperatorPod] 240;
    install::kustomize [Kubectl, OperatorPod] 60;
    install::helm_namespaced smoke alone [Helm, Kubectl, OperatorPod] 420;
    install::helm_cluster_wide alone [Helm, Kubectl, OperatorPod, PrometheusOperator] 400;
    install::monitoring_objects_are_accepted alone [Helm, Kubectl, PrometheusOperator] 120;
    infrastructure::node_of_the_operator_lost alone [Nodes, Kubectl, OperatorPod] 700;
    infrastructure::node_of_one_of_two_operators_lost alone [Nodes, Helm, Kubectl, OperatorPod] 700;
    install::operator_upgrade alone [Previous, Kubectl, OperatorPod] 400;
    install::two_operators_of_different_versions alone [Previous, Kubectl, OperatorPod] 600;
    infrastructure::drain_every_node alone [Nodes, Kubectl] 600;
    infrastructure::drain_a_node_with_two_members alone [Nodes, Kubectl] 500;
    infrastructure::certificates_are_renewed 240;
    infrastructure::namespace_deleted_with_a_cluster 240;
    infrastructure::api_server_down_for_a_minute alone [ApiServer] 400;
    install::clusters_keep_running_after_uninstall alone [Kubectl, OperatorPod] 400;
    adopt::a_stateful_set_is_adopted alone [Kubectl] 500;
    adopt::a_stateful_set_with_tls_is_adopted alone [Kubectl] 600;
    adopt::what_cannot_be_adopted_is_reported [Kubectl] 300;
    adopt_scope::a_cluster_of_another_namespace_is_not_adopted 240;
    adopt::a_cluster_of_the_old_operator_is_adopted [Kubectl] 500;
    backup::backup_with_kubectl smoke [Kubectl] 240;
    backup_s3::backup_to_s3_step_by_step [Kubectl, S3] 240;
    backup_s3::restore_from_s3_step_by_step [Kubectl, S3] 420;
    backup_s3::backup_when_s3_rejects_or_is_unavailable [Kubectl, S3] 400;
    backup_s3::a_gibibyte_to_s3_in_small_agents alone [Kubectl, S3] 600;
    backup::backup_schedule_and_retention 300;
    backup::backup_of_a_tls_cluster 300;
    backup::backup_proven_and_followed 300;
    backup::backup_problems_are_reported [Kubectl] 400;
    backup_kept::backup_proofs_that_fail_delete_nothing [S3] 600;
    backup_kept::interrupted_backup_keeps_the_previous_one [S3] 400;
    backup_kept::backup_path_conflict_is_rejected 300;
    backup_kept::restore_whose_inspecting_node_dies alone [Nodes, S3] 900;
    backup::backup_operator_killed alone 600;
    backup::backups_are_isolated_by_namespace 300;
    backup::backup_by_the_cluster_itself 300;
    backup::backup_before_an_upgrade 600;
    restore::restore_with_kubectl smoke [Kubectl] 420;
    restore::destroyed_and_restored 480;
    restore::bad_backups_are_rejected 420;
    restore::restore_operator_killed alone 600;
    restore::recovered_from_backup 480;
    restore::tls_cluster_restored 420;
    restore::ephemeral_cluster_restored 420;
    restore::created_from_a_backup 420;
    restore::restored_to_a_revision 480;
    stateful_set::web_in_order [Kubectl, Image("nginx:1.22")] 600;
    stateful_set::web_updated_and_undone [Kubectl, Image("nginx:1.22"), Image("nginx:1.26")] 900;
    stateful_set_features::pod_features [Kubectl, Image("nginx:1.22")] 900;
    stateful_set_mysql::mysql_written_read_and_scaled [Kubectl, Image("mariadb:10.11")] 1200;
    stateful_set_mysql::mysql_pods_killed [Kubectl, Image("mariadb:10.11")] 900;
    stateful_set_mysql::mysql_updated_by_partition [Kubectl, Image("mariadb:10.11"), Image("mariadb:11.8")] 1200;
    images::image_mysql [Kubectl, Image("mysql:9.7")] 300;
    images::image_mariadb [Kubectl, Image("mariadb:10.11")] 300;
    images::image_elasticsearch [Kubectl, Image("elasticsearch:7.9.1")] 300;
    images::image_prometheus [Kubectl, Image("prometheus:2.53")] 300;
    images::image_valkey [Kubectl, Image("valkey:9.1")] 300;
    images::image_tidb [Kubectl, Image("pd:2021.03.23"), Image("tidb:2021.04.07"), Image("unistore:2023.11.25")] 600;
    restore::restored_in_every_version [AllVersions] 900;
    mysql::mysql_create [Image("mysql:9.7")] 400;
    mysql::mysql_kill_the_primary [Image("mysql:9.7")] 400;
    mysql::mysql_delete_the_primary_pod [Image("mysql:9.7")] 500;
    mysql::mysql_empty_cluster_fails_over [Image("mysql:9.7")] 400;
    mysql::mysql_replica_lost_and_then_the_primary [Image("mysql:9.7")] 800;
    mysql::mysql_lost_volumes [Image("mysql:9.7")] 900;
    mysql::mysql_delete_claim_and_pod_of_replica [Image("mysql:9.7")] 700;
    mysql::mysql_all_pods_killed [Image("mysql:9.7")] 600;
    mysql::mysql_scale_under_load [Image("mysql:9.7"), Kubectl] 900;
    mysql::mysql_switchover_under_load [Image("mysql:9.7")] 500;
    mysql::mysql_config_by_role [Image("mysql:9.7")] 700;
    mysql::mysql_bad_image_then_revert [Image("mysql:9.7")] 600;
    mysql::mysql_invalid_specs_are_rejected [Image("mysql:9.7")] 120;
    mysql::mysql_cut_off_primary alone [Image("mysql:9.7"), Cuts] 600;
    mysql::mysql_former_primary_with_own_transactions alone [Image("mysql:9.7"), Cuts, Kubectl] 700;
    mysql::mysql_operator_killed_during_a_failover alone [Image("mysql:9.7")] 500;
    mysql::mysql_operator_killed_after_every_write alone [Image("mysql:9.7"), Meter] 900;
}
